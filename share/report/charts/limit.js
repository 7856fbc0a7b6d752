// Throughput beside what the same place can do, measured in the same run; and where the time went by operation.
"use strict";

function throughputAgainstLimit(run) {
    const rows = [
        { name: "save", rate: (run.metrics.save_bytes_per_s || {}).median, limit: run.limits.baseline_write_bytes_per_s, share: run.limits.save_limit_fraction },
        { name: "load", rate: (run.metrics.load_bytes_per_s || {}).median, limit: run.limits.baseline_read_bytes_per_s, share: run.limits.load_limit_fraction },
    ].filter((row) => row.rate !== undefined);
    if (!rows.length || !rows.some((row) => row.limit !== null)) return null;
    return {
        title: "Throughput against the device limit",
        note: "The limit is a raw measurement at the same place in the same run.",
        document: "run",
        chart: {
            height: 90 + 70 * rows.length,
            words: rows.map((row) => `${row.name}: ${figure(row.rate, "bytes/s")} of ${figure(row.limit, "bytes/s")}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "item", formatter: (point) => tip(`${point.name}, ${point.seriesName}`, [["", figure(point.value, "bytes/s")]]) },
                legend: {}, grid: { right: 60 },
                xAxis: bytesAxis(palette, Math.max(...rows.flatMap((row) => [row.rate, row.limit || 0])), "bytes/s"),
                yAxis: axis(palette, { type: "category", inverse: true, data: rows.map((row) => row.name) }),
                series: [
                    { name: "measured", type: "bar", barMaxWidth: 22, itemStyle: { color: palette.hues[0] }, data: rows.map((row) => row.rate),
                        label: { show: true, position: "right", color: palette.text, formatter: ({ dataIndex }) => (rows[dataIndex].share === null ? "" : percent(rows[dataIndex].share)) } },
                    { name: "device limit", type: "bar", barMaxWidth: 22, itemStyle: { color: palette.grey }, data: rows.map((row) => row.limit) },
                ],
            }),
        },
        table: {
            columns: ["operation", "#throughput", "#device limit", "#share of the limit"],
            rows: rows.map((row) => () => [textCell(row.name), cell(row.rate, "bytes/s"), cell(row.limit, "bytes/s"), cell(row.share, "ratio")]),
        },
    };
}

function sharesOfStates(run) {
    const operations = Object.keys(run.states || {});
    const names = STATES.flatMap((state) => [state.name, state.loadName]).filter((name) => operations.some((operation) => run.states[operation][name] > 0));
    if (!names.length) return null;
    const known = (name) => STATES.find((state) => state.name === name || state.loadName === name) || { hue: null };
    return {
        title: "What the time went into",
        note: "The mean of all ranks.",
        document: "run",
        chart: {
            height: 70 + 40 * operations.length,
            words: operations.map((operation) => `${operation}: ${names.filter((name) => run.states[operation][name] >= 0.1).map((name) => `${name} ${percent(run.states[operation][name])}`).join(", ")}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "item", formatter: (point) => tip(`${point.name}: ${point.seriesName}`, [["", percent(point.value)]]) },
                legend: {},
                xAxis: axis(palette, { type: "value", max: 1, axisLabel: { formatter: percent } }),
                yAxis: axis(palette, { type: "category", inverse: true, data: operations.map((operation) => operation.replace("_", " ")) }),
                series: names.map((name) => ({
                    name, type: "bar", stack: "share", barMaxWidth: 28,
                    itemStyle: { color: known(name).hue === null ? palette.grey : palette.hues[known(name).hue], opacity: known(name).pale ? 0.5 : 1 },
                    data: operations.map((operation) => run.states[operation][name] || 0),
                })),
            }),
        },
        table: {
            columns: ["operation", ...names.map((name) => `#${name}`)],
            rows: operations.map((operation) => () => [textCell(operation.replace("_", " ")), ...names.map((name) => element("td", { class: "figure", "data-value": JSON.stringify(run.states[operation][name] ?? null) },
                run.states[operation][name] === undefined ? "-" : percent(run.states[operation][name])))]),
        },
    };
}
