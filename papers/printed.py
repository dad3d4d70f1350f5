"""What the papers print of retrieval by links: a reference, on their data (spec 5.1 to 5.7)."""

from __future__ import annotations

from collections.abc import Mapping

from papers.measures import COLUMNS

Figures = Mapping[str, Mapping[str, str]]


def _figures(**rows: tuple[str, str, str]) -> Figures:
    """Return the paper's figures of systems, underscores for hyphens: rank loss, MAP, P@10."""
    return {
        name.replace("_", "-"): {measure: text for measure, text in zip(COLUMNS, row, strict=True) if text}
        for name, row in rows.items()
    }


RETRIEVAL: dict[str, Figures] = {
    "T1a": _figures(
        tf_idf=("1.62 %", "0.329 ± 0.010", "0.163 ± 0.006"),
        query_expansion=("1.62 %", "0.330 ± 0.010", "0.163 ± 0.006"),
        lsi=("4.79 %", "0.158 ± 0.006", "0.098 ± 0.005"),
        lsi_tf_idf=("1.28 %", "0.346 ± 0.011", "0.170 ± 0.007"),
        margin_ranking_perceptron=("0.41 %", "0.477 ± 0.011", "0.212 ± 0.007"),
        zero_diagonal=("0.69 %", "", ""),
        utv=("0.56 %", "0.42", ""),
        utv_plus_i=("0.30 %", "0.517 ± 0.011", "0.229 ± 0.007"),
        psi_3=("0.14 %", "0.539 ± 0.011", "0.236 ± 0.007"),
    ),
    "T1b": _figures(
        tf_idf=("0.842 %", "0.432 ± 0.012", "0.1933 ± 0.007"),
        query_expansion=("0.842 %", "0.432 ± 0.012", "0.1933 ± 0.007"),
        lsi_tf_idf=("0.721 %", "0.433 ± 0.012", "0.1933 ± 0.007"),
        hash_kernels_diagonal_3m=("0.347 %", "0.485 ± 0.011", "0.215 ± 0.007"),
        restricted_utv_plus_i=("0.158 %", "0.547 ± 0.012", "0.239 ± 0.008"),
        psi_3=("0.099 %", "0.590 ± 0.012", "0.249 ± 0.008"),
    ),
    "T3a": _figures(
        tf_idf=("21.6 %", "0.047", "0.023"),
        lsi_tf_idf=("14.2 %", "0.049", "0.023"),
        utv_plus_i=("4.37 %", "0.166", "0.083"),
    ),
    "T3b": _figures(
        tf_idf=("14.0 %", "0.083", "0.035"),
        query_expansion=("", "0.084", "0.0376"),
        lsi_tf_idf=("9.73 %", "0.089", "0.037"),
        utu_plus_i=("3.11 %", "0.215", "0.097"),
        utv_plus_i=("2.91 %", "0.229", "0.100"),
    ),
    "T3c": _figures(
        tf_idf=("9.14 %", "0.128", "0.054"),
        lsi_tf_idf=("6.36 %", "0.133", "0.059"),
        utv_plus_i=("1.80 %", "0.302", "0.130"),
    ),
    "T3d": {},
}
SPLITS: dict[str, Figures] = {
    "links": _figures(utv_plus_i=("0.407 %", "0.506 ± 0.012", "0.225 ± 0.007")),
    "documents": _figures(utv_plus_i=("0.401 %", "0.503 ± 0.010", "0.225 ± 0.006")),
}
BY_DIMS = {100: "0.39 %", 200: "0.30 %", 500: "0.31 %"}
