"""Tables of comparisons as Markdown and LaTeX."""

from __future__ import annotations

from fedlga.experiments.tables import format_latex, format_markdown

CELLS = [["method", "stragglers", "best accuracy"], ["my_method", "keep lr=0.1|x", "65.0% ± 1.0%"]]


def test_markdown():
    assert format_markdown(CELLS) == (
        "| method | stragglers | best accuracy |\n|---|---|---:|\n| my_method | keep lr=0.1\\|x | 65.0% ± 1.0% |\n"
        "\nMean ± half of the 95 % interval over the seeds (from three seeds on).\n"
    )


def test_latex():
    lines = format_latex(CELLS).splitlines()
    assert lines[1:4] == [r"\begin{tabular}{llr}", r"\toprule", r"method & stragglers & best accuracy \\"]
    assert lines[5] == r"my\_method & keep lr=0.1|x & 65.0\% $\pm$ 1.0\% \\"
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
