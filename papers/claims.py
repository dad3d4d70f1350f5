"""Claims of the papers that one system is better than another, by task."""

from __future__ import annotations

from collections.abc import Mapping

from papers.results import Claim

RETRIEVAL = (
    Claim("utv-plus-i", "utu-plus-i", "SSI"),
    Claim("utu-plus-i", "diagonal", "SSI"),
    Claim("diagonal", "tf-idf", "SSI"),
    Claim("utv-plus-i", "utv", "SSI"),
    Claim("margin-ranking-perceptron", "zero-diagonal", "SSI"),
    Claim("utv-plus-i", "margin-ranking-perceptron", "SSI and PSI"),
    Claim("psi-3", "utv-plus-i", "PSI"),
    Claim("restricted-utv-plus-i", "utv-plus-i", "SSI, full vocabulary"),
    Claim("cfh-1-grams", "restricted-utv-plus-i", "SSI, full vocabulary"),
    Claim("cfh-2-grams", "restricted-utv-plus-i", "SSI, full vocabulary"),
    Claim("cfh-1-grams", "cfh-2-grams", "SSI, full vocabulary"),
    Claim("utv-plus-i", "hash-kernels-3m", "SSI"),
    Claim("utv-plus-i", "hash-kernels-diagonal-3m", "SSI and PSI"),
    Claim("hash-kernels-diagonal-3m", "hash-kernels-3m", "SSI"),
    Claim("hash-kernels-3m", "tf-idf", "SSI and PSI"),
    Claim("hash-kernels-diagonal-3m", "tf-idf", "SSI and PSI"),
    Claim("margin-ranking-perceptron", "tf-idf", "SSI and PSI"),
    Claim("utv-plus-i", "tf-idf", "SSI and PSI"),
    Claim("utv-plus-i", "lsi", "SSI and PSI"),
    Claim("utv-plus-i", "lsi-tf-idf", "SSI and PSI"),
    Claim("utv-plus-i", "query-expansion", "SSI and PSI"),
    Claim("lsi-tf-idf", "tf-idf", "PSI"),
)
"""Claims of SSI and PSI on retrieval by links (spec 5.7 and 5.1)."""
ACROSS_LANGUAGES = (
    Claim("psi-cross", "cl-lsi", "PSI"),
    Claim("psi-cross", "translated-psi", "PSI"),
    Claim("psi-cross-tfidf", "psi-cross", "PSI"),
    Claim("psi-cross-psi", "psi-cross", "PSI"),
    Claim("psi-cross-psi", "psi-cross-tfidf", "PSI"),
    Claim("translated-psi", "translated-tfidf-ibm", "PSI"),
    Claim("translated-lsi-tfidf", "translated-tfidf-ibm", "PSI"),
    Claim("translated-tfidf-ibm", "translated-lsi", "PSI"),
    Claim("translated-tfidf-ibm", "cl-lsi", "PSI"),
    Claim("translated-tfidf-ibm", "word-translated-tfidf-ibm", "PSI"),
    Claim("cl-lsi-tfidf", "cl-lsi", "PSI"),
)
"""Orders of PSI's Table 6 that are the same in all its measures (spec 5.6)."""
MATES = (
    Claim("psi-cross", "cl-lsi", "PSI"),
    Claim("psi-cross-cl-lsi", "cl-lsi", "PSI"),
)
"""Claims of PSI on finding mates (spec 5.6); the paper does not name the start of its model."""
COMPARABLE = (
    Claim("mates-s2net", "mates-opca", "S2Net"),
    Claim("mates-s2net-cl-lsi", "mates-opca", "S2Net"),
    Claim("mates-s2net", "cl-lsi", "S2Net"),
    Claim("mates-opca", "mates-cca", "S2Net"),
    Claim("mates-cca", "mates-cplsa", "S2Net"),
    Claim("mates-cplsa", "mates-jplsa", "S2Net"),
    Claim("mates-jplsa", "cl-lsi", "S2Net"),
    Claim("psi-cross-cl-lsi", "cl-lsi", "PSI"),
)
"""Claims on comparable documents (spec 5.8); that of PSI is of its task T5."""
ADS_FILTER = (
    Claim("graded-s2net", "graded-tfidf", "S2Net"),
    Claim("graded-s2net", "graded-pca", "S2Net"),
    Claim("graded-tfidf", "graded-pca", "S2Net"),
)
"""Claims of S2Net on the AUC of pairs of query and ad (spec 5.9)."""
ADS_ORDER = (
    *(
        Claim("graded-s2net", f"graded-{other}", "S2Net")
        for other in ("tfidf", "cplsa", "jplsa", "plsa", "hdlr", "cca", "opca", "pca")
    ),
    Claim("graded-cplsa", "graded-tfidf", "S2Net"),
    Claim("graded-jplsa", "graded-tfidf", "S2Net"),
    Claim("graded-cplsa", "graded-jplsa", "S2Net"),
    Claim("graded-tfidf", "graded-pca", "S2Net"),
)
"""Claims of S2Net on the order of a query's ads (spec 5.9)."""
MATCHING = (
    Claim("utv", "tf-idf", "SSI"),
    Claim("utv-plus-i", "tf-idf", "SSI"),
    Claim("hash-kernels-3m", "tf-idf", "SSI"),
)
"""Claims of SSI on content matching: TF-IDF is very poor there (spec 5.7)."""

CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    **dict.fromkeys(("T1a", "T1b", "T2", "T3a", "T3b", "T3c", "T3d", "T13"), RETRIEVAL),
    "T4": ACROSS_LANGUAGES,
    "T5": MATES,
    "T6": COMPARABLE,
    "T7a": ADS_FILTER,
    "T7b": ADS_ORDER,
    "T8": MATCHING,
}
"""Claims by the id of the task that tests them."""
