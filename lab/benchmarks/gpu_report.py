"""What the sections of the GPU benchmark are said to have found: tables, and the bars they are held to."""

from __future__ import annotations

from .case import Bar, Found, Report, at_least, at_most, measured, shown
from .runner import worst

SUM, SOLVE = "sum of M", "solve"
PEERS = ("PCPF", "AccAltProj")
COLUMNS = ("seconds", "fastest", "slowest")


def in_units(value: float) -> str:
    return f"{1e3 * value:,.2f} ms" if value < 1 else f"{value:,.2f} s"


def title_of(found: Found) -> str:
    size = found["sizes"]
    shape = f"{size.get('n1', size.get('n')):,} × {size.get('n2', size.get('n')):,}"
    words = [f"{shape} {size.get('dtype', 'float32')} ({found['M_bytes'] / 1e9:.4g} GB)", f"d = {size['d']}"]
    words.append(f"r = {size['rank']}")
    words.append(f"{size.get('corruption', size.get('gross')):.0%} corrupted")
    if found.get("noise"):
        words.append(f"noise 1/{found['size_of_L'] / found['noise']:.0f} of L")
    if "missing" in size:
        words.append(f"{size['missing']:.0%} missing, {size['free']} components that no feature explains")
    if "memory" in found:
        words.append(f"{found['memory'] / 1e9:.3g} GB of M on the device")
    return ", ".join(words)


def plain_report(found: Found) -> Report:
    """A line for each contender, with what is known of it."""
    rows = []
    for name, row in found["contenders"].items():
        rounds = row["rounds"]
        rows.append(
            (
                name,
                *(in_units(row[key]) for key in COLUMNS),
                in_units(row["device_seconds"]) if "device_seconds" in row else "–",
                f"{row['ratio']:.3g}",
                *(
                    shown(worst([{key: None} | record for record in rounds], key), form)
                    for key, form in (("error", ".1e"), ("reads", ".3g"), ("false", ",d"), ("missed", ",d"))
                ),
                shown(row.get("iterations"), "d"),
            )
        )
    header = (
        "",
        "median",
        "min",
        "max",
        "between events",
        "ratio",
        "error",
        "reads",
        "S: false",
        "missed",
        "iterations",
    )
    told = [k for k in range(len(header)) if any(row[k] != "–" for row in rows)]
    picked = [tuple(line[k] for k in told) for line in (header, *rows)]
    return Report(title_of(found), picked[0], picked[1:], remarks_of(found))


def remarks_of(found: Found) -> list[str]:
    remarks = []
    if found.get("least_error"):
        remarks.append(f"with the support known, noise costs an error of {found['least_error']:.1e}")
    if "first_seconds" in found:
        remarks.append(f"the first call, which compiles, took {found['first_seconds']:.1f} s")
    if "engine" in found:
        remarks.append(found["engine"])
    if "breakdown" in found:
        spent = found["breakdown"]
        parts = [f"{name} {in_units(row['seconds'])} ({row['calls']})" for name, row in spent["questions"].items()]
        remarks.append(
            f"one solve, {in_units(spent['seconds'])}, on {spent['engine']}: {', '.join(parts)}, "
            f"host {in_units(spent['host_seconds'])}"
        )
    for name, row in found["contenders"].items():
        if "options" in row:
            options = ", ".join(f"{key} {value:.3g}" for key, value in row["options"].items())
            remarks.append(f"{name}: {options}" + ("" if row["iterations"] else ", never correct"))
    return remarks


def sum_bars(found: Found) -> list[Bar]:
    row = found["contenders"][SUM]
    speed = found["M_bytes"] / row["device_seconds"] / 1e12
    return [Bar("sum of M, on the device", *measured(1e3 * row["device_seconds"], " ms"), f"{speed:.2f} TB/s")]


def pass_bars(found: Found) -> list[Bar]:
    lines = []
    limits = dict(zip(found["sizes"]["widths"], (2.0, 2.5), strict=True))
    for width, limit in limits.items():
        core = found["contenders"][f"core, d = {width}"]
        error = f"core {worst(core['rounds'], 'error'):.1e}"
        alone = found["contenders"].get(f"kernel alone, d = {width}")
        if alone:
            ratio = alone["device_ratio"]
            lines.append(Bar(f"fused pass, d = {width}, on the device, / sum", *at_most(limit, ratio), error))
            lines.append(Bar(f"core(), d = {width}, with its transfers, / sum", *measured(core["ratio"]), error))
        else:
            lines.append(Bar(f"core(), d = {width}, with its transfers, / sum", *at_most(limit, core["ratio"]), error))
    return lines


def solve_bars(found: Found, limits: dict[str, float], error: float | None) -> list[Bar]:
    row = found["contenders"][SOLVE]
    rounds = row["rounds"]
    L, wrong = worst(rounds, "error"), worst(rounds, "false") + worst(rounds, "missed")
    told = f"L {L:.1e}, S {wrong:,} wrong"
    lines = [Bar(f"decomposition / sum{word}", *at_most(limit, row["ratio"]), told) for word, limit in limits.items()]
    if not limits:
        lines.append(Bar("decomposition / sum", *measured(row["ratio"]), told))
    if error is None:
        best = found["least_error"]
        lines.append(Bar("error of L, to that of least squares on the true support", *measured(L / best)))
        return lines
    lines.append(Bar("error of L", *at_most(error, L, "", ".1e")))
    lines.append(Bar("entries wrongly in S, or not in it", *at_most(0, wrong, "", ",d")))
    return lines


def table_bars(found: Found) -> list[Bar]:
    rows = found["contenders"]
    most = max((name for name in rows if name != "GPU"), key=lambda name: int(name.split()[0]))
    lines = []
    for name, row in rows.items():
        if name != "GPU":
            errors = f"L {worst(rows['GPU']['rounds'], 'error'):.1e}, {name} {worst(row['rounds'], 'error'):.1e}"
            told = at_least(20, row["ratio"]) if name == most else measured(row["ratio"])
            lines.append(Bar(f"fit with a free part: {name} / GPU", *told, errors))
    return lines


def peer_bars(found: Found) -> list[Bar]:
    rows = found["contenders"]
    lines = []
    for name in PEERS:
        for kind in ("as published", "tuned"):
            row = rows[f"{name}, {kind}"]
            told = at_least(50, row["ratio"]) if kind == "as published" else measured(row["ratio"])
            errors = f"L {worst(rows['irpca']['rounds'], 'error'):.1e}, {name} {worst(row['rounds'], 'error'):.1e}"
            lines.append(Bar(f"{name}, {kind}, / irpca", *told, errors))
    return lines


def stream_bars(found: Found) -> list[Bar]:
    rows = found["contenders"]
    speed = found["M_bytes"] / rows["pinned copy"]["seconds"] / 1e9
    return [
        Bar("one pass over M in host memory, / pinned copy", *measured(rows["core"]["ratio"]), f"{speed:.0f} GB/s"),
        Bar(
            "decomposition of M in host memory, / pinned copy",
            *measured(rows[SOLVE]["ratio"]),
            f"L {worst(rows[SOLVE]['rounds'], 'error'):.1e}",
        ),
    ]
