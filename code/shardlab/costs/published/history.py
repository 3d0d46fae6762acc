"""How large published language models were, by date.

Parameters are counted from the shapes of their layers where `models` or `mixtures` list them;
otherwise they are the number that the authors print.
"""

from dataclasses import dataclass

from shardlab.arguments import Positive, checked

from ..facts import mixtures, models


@checked
@dataclass(frozen=True, kw_only=True)
class Size:
    """One model and its date of publication."""

    name: str
    date: str  # year-month
    parameters: Positive
    mixture: bool  # of experts: a token uses a small part of them
    counted: bool  # from the shapes of its layers; False: as printed
    source: str


_TURING = "https://www.microsoft.com/en-us/research/blog/turing-nlg-a-17-billion-parameter-language-model-by-microsoft/"
_PRINTED = (
    ("Transformer (big)", "2017-06", 213e6, "Vaswani et al. 2017, Table 3 (https://arxiv.org/abs/1706.03762)"),
    ("GPT-1", "2018-06", 117e6, "Radford et al. 2019, Table 2: GPT-2's smallest size is GPT-1's"),
    ("BERT-large", "2018-10", 340e6, "Devlin et al. 2018, section 3 (https://arxiv.org/abs/1810.04805)"),
    ("Megatron-LM", "2019-09", 8.3e9, "Shoeybi et al. 2019 (https://arxiv.org/abs/1909.08053)"),
    ("T5-11B", "2019-10", 11e9, "Raffel et al. 2019 (https://arxiv.org/abs/1910.10683)"),
    ("Turing-NLG", "2020-02", 17e9, _TURING),
    ("Switch-C", "2021-01", 1.6e12, "Fedus et al. 2021 (https://arxiv.org/abs/2101.03961)"),
    ("MT-NLG", "2021-10", 530e9, "Smith et al. 2022 (https://arxiv.org/abs/2201.11990)"),
    ("Gopher", "2021-12", 280e9, "Rae et al. 2021 (https://arxiv.org/abs/2112.11446)"),
    ("GLaM", "2021-12", 1.2e12, "Du et al. 2021 (https://arxiv.org/abs/2112.06905)"),
    ("Chinchilla", "2022-03", 70e9, "Hoffmann et al. 2022 (https://arxiv.org/abs/2203.15556)"),
    ("PaLM", "2022-04", 540.35e9, "Chowdhery et al. 2022, Table 1 (https://arxiv.org/abs/2204.02311)"),
    ("OPT", "2022-05", 175e9, "Zhang et al. 2022 (https://arxiv.org/abs/2205.01068)"),
    ("BLOOM", "2022-11", 176e9, "BigScience 2022 (https://arxiv.org/abs/2211.05100)"),
    ("DeepSeek-V4-Pro", "2026-04", 1.6e12, "DeepSeek-AI 2026 (https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro)"),
)
_COUNTED = ("GPT-2 XL", "GPT-3 175B", "Llama 1 65B", "Llama 2 70B", "Llama 3 70B", "Llama 3 405B")
_MIXTURES = ("Switch-C", "GLaM", "DeepSeek-V4-Pro")  # of those that are printed


def sizes() -> list[Size]:
    """List every model of the chart, oldest first."""
    found = [
        Size(
            name=name,
            date=date,
            parameters=count,
            mixture=name in _MIXTURES,
            counted=False,
            source=source,
        )
        for name, date, count, source in _PRINTED
    ]
    for dense in map(models.published, _COUNTED):
        count = models.num_parameters(dense.spec)
        found.append(_counted(dense.name, dense.date, count, dense.source, mixture=False))
    for one in mixtures.PUBLISHED.values():
        count = sum(mixtures.parameters(one.spec).values())
        found.append(_counted(one.name, one.date, count, one.source, mixture=True))
    return sorted(found, key=lambda size: (size.date, size.name))


def _counted(name: str, date: str, count: int, source: str, *, mixture: bool) -> Size:
    return Size(
        name=name, date=date, parameters=count, mixture=mixture, counted=True, source=source
    )
