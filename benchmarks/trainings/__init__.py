"""Trainings of whole models, each written once for every framework that runs it.

`work` holds the data, the initial weights and the settings; `own`, `in_torch`, `in_jax` and
`in_keras` train, one framework each, as its documentation advises.
"""
