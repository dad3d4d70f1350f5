"""Calibration: fits weights to queries with known answers, and keeps them in a release, where searches find them.

- `bodies`: the parts of a search body that determine scores, by which a calibration is found
- `kept`: the calibrations that a release keeps, and the alpha that is chosen for a search
- `topics`: queries with known answers, from judgments or links
- `rankings`: the candidates of the topics, ranked with any alpha and weights
- `cross_validation`: the choice of the best value, and its gain on queries that it was not fitted to
- `alpha`: fits alpha, the weight of the model, and the weights of signals
- `probability`: fits the probability of relevance
- `boost`: fits the boost of impacts
- `comparison`: compares the orders of the engine and the model
- `fit_warnings`: warnings about a fit for its user
"""
