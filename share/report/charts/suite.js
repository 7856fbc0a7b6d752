// What the cluster suite measured: nodes that stand out, each pair of nodes, and curves over message sizes.
"use strict";

const OUTLIER = 3.5; // robust z from which show calls a node an outlier
const FEWEST = 4; // nodes for which there is a robust z

// Network and GPUs count in powers of 1000, as that field does.
function suiteFigure(value, unit) {
    if (!unit?.endsWith("/s") || value === null || value === undefined) return figure(value, unit);
    const step = Math.max(0, Math.min(4, Math.floor(Math.log10(Math.abs(value) || 1) / 3)));
    return `${Number((value / 1000 ** step).toPrecision(3))}${BLANK}${["", "k", "M", "G", "T"][step]}${unit.replace("bytes", "B")}`;
}

function suiteCell(value, unit) {
    return element("td", { class: "figure", "data-value": JSON.stringify(value ?? null) }, suiteFigure(value, unit));
}

function unitOf(run, name) {
    return (run.metrics[name] || run.metrics[`suite.${name}`] || {}).unit || (name.endsWith("_s") ? "s" : "");
}

// Times are better where they are short, all other figures of the suite where they are high.
function betterBy(unit, distance) {
    return Math.max(-1, Math.min(unit === "s" ? -distance : distance, 1));
}

// How far each node is from the median of all, one row a metric, one column a node.
function nodesOfSuite(run, what) {
    const units = run[what];
    if (!units || units.names.length < 3) return null;
    const metrics = Object.entries(units.metrics || {}).filter(([, metric]) => metric.values.some((value) => value !== null && value !== metric.median));
    if (!metrics.length) return null;
    const marks = metrics.flatMap(([name, metric], row) => metric.values.map((value, column) => (value === null || !metric.median ? null : [column, row, betterBy(unitOf(run, name), value / metric.median - 1), value])).filter(Boolean));
    const noun = what === "gpus" ? "GPU" : "node";
    return {
        title: `${what === "gpus" ? "GPUs" : "Nodes"} against their median`, document: "run",
        note: `The distance of each ${noun} from the median of all, cut at 100 %: blue is better, orange worse. ${units.names.length < FEWEST ? `Outliers need at least ${plural(FEWEST, noun)}.` : `A robust z of more than ${OUTLIER} makes one an outlier.`}`,
        chart: {
            height: 90 + 24 * metrics.length,
            words: metrics.map(([name, metric]) => `${name}: worst ${metric.worst}${metric.z === null ? "" : `, z ${digits(metric.z)}`}`).join("; "),
            option: (palette, width) => ({
                tooltip: { trigger: "item", formatter: (point) => tip(units.names[point.value[0]], [[metrics[point.value[1]][0], suiteFigure(point.value[3], unitOf(run, metrics[point.value[1]][0]))], ["from the median", change(point.value[3] / metrics[point.value[1]][1].median - 1)]]) },
                legend: false, grid: { top: 8, bottom: 44 },
                xAxis: axis(palette, { type: "category", data: units.names, splitLine: { show: false }, axisLabel: { overflow: "truncate", width: 70 } }),
                yAxis: axis(palette, { type: "category", inverse: true, data: metrics.map(([name]) => name), splitLine: { show: false }, axisLabel: { interval: 0, overflow: "truncate", width: width < 500 ? 120 : 260 } }),
                visualMap: { min: -1, max: 1, dimension: 2, calculable: false, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, itemWidth: 10, text: ["better", "worse"], textStyle: { color: palette.text },
                    inRange: { color: [palette.hues[1], palette.isDark ? "#2a323b" : "#f0f0f0", palette.hues[0]] } },
                series: [{ name: "distance", type: "heatmap", data: marks, itemStyle: { borderColor: palette.ground, borderWidth: 1 } }],
            }),
        },
        table: {
            columns: ["metric", "#median", "worst", "#robust z", ...(units.names.length <= 16 ? units.names.map((name) => `#${name}`) : [])],
            rows: metrics.map(([name, metric]) => () => [textCell(name), suiteCell(metric.median, unitOf(run, name)), textCell(metric.worst), cell(metric.z),
                ...(units.names.length <= 16 ? metric.values.map((value) => suiteCell(value, unitOf(run, name))) : [])]),
        },
    };
}

const PAIRS = { latency_s: ["Latency between nodes", "s", "net_latency_s"], bytes_per_s: ["Bandwidth between nodes", "bytes/s", "net_bandwidth_bytes_per_s"],
    gpu_latency_s: ["Latency between GPUs of nodes", "s"], gpu_bytes_per_s: ["Bandwidth between GPUs of nodes", "bytes/s"] };

function pairsOfSuite(run, member) {
    const [title, unit, metric] = PAIRS[member], values = run.nodes?.pairs?.[member];
    const names = run.nodes?.names || [];
    const marks = (values || []).flatMap((row, from) => row.map((value, to) => (value === null ? null : [to, from, value])).filter(Boolean));
    if (!marks.length) return null;
    const worst = (run.nodes.worst_pairs || {})[metric];
    const all = marks.map(([, , value]) => value);
    return {
        title, document: "run",
        note: worst ? `The worst pair is ${worst.nodes.join(" and ")} with ${suiteFigure(worst.value, unit)}; the median is ${suiteFigure(worst.median, unit)}${worst.z === null ? "" : `, the robust z ${digits(worst.z)}`}.` : "",
        chart: {
            height: Math.min(150 + 26 * names.length, 620),
            words: `${plural(marks.length, "pair")} of nodes from ${suiteFigure(Math.min(...all), unit)} to ${suiteFigure(Math.max(...all), unit)}`,
            option: (palette) => ({
                tooltip: { trigger: "item", formatter: (point) => tip(`${names[point.value[1]]} to ${names[point.value[0]]}`, [["", suiteFigure(point.value[2], unit)]]) },
                legend: false, grid: { top: 8, bottom: 44 },
                xAxis: axis(palette, { type: "category", data: names, splitLine: { show: false }, axisLabel: { overflow: "truncate", width: 70 } }),
                yAxis: axis(palette, { type: "category", inverse: true, data: names, splitLine: { show: false }, axisLabel: { overflow: "truncate", width: 120 } }),
                visualMap: { min: Math.min(...all), max: Math.max(...all), dimension: 2, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, itemWidth: 10,
                    text: [suiteFigure(Math.max(...all), unit), suiteFigure(Math.min(...all), unit)], textStyle: { color: palette.text },
                    inRange: { color: unit === "s" ? [palette.isDark ? "#2a323b" : "#eef3f7", palette.hues[1]] : [palette.hues[1], palette.isDark ? "#2a323b" : "#eef3f7"] } },
                series: [{ name: title, type: "heatmap", data: marks, itemStyle: { borderColor: palette.ground, borderWidth: 1 } }],
            }),
        },
        table: names.length > 64 ? null : {
            columns: ["from", ...names.map((name) => `#${name}`)],
            rows: values.map((row, from) => () => [textCell(names[from]), ...row.map((value) => suiteCell(value, unit))]),
        },
    };
}

// curves: {name: [{bytes, …}]}; key: the figure drawn.
function curvesOverSizes(title, note, curves, key, unit, others) {
    const names = Object.keys(curves || {}).filter((name) => curves[name].length > 1);
    if (!names.length) return null;
    const sizes = names.flatMap((name) => curves[name].map((point) => point.bytes));
    return {
        title, note, document: "run",
        chart: {
            height: 320,
            words: names.map((name) => `${name}: ${suiteFigure(curves[name][curves[name].length - 1][key], unit)} at ${bytes(curves[name][curves[name].length - 1].bytes)}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "item", formatter: (point) => tip(point.seriesName, [["size", bytes(point.value[0])], ["", suiteFigure(point.value[1], unit)]]) },
                legend: {}, grid: { bottom: 26, right: 30 },
                xAxis: axis(palette, { type: "log", logBase: 2, name: "bytes", nameGap: 28, min: Math.min(...sizes), max: Math.max(...sizes), axisLabel: { formatter: bytes } }),
                yAxis: axis(palette, { type: "log", axisLabel: { formatter: (value) => suiteFigure(value, unit) } }),
                series: names.map((name, index) => ({ name, type: "line", symbolSize: 7, itemStyle: { color: palette.hues[index % palette.hues.length] },
                    lineStyle: { type: index < palette.hues.length ? "solid" : "dashed" }, data: curves[name].map((point) => [point.bytes, point[key]]) })),
            }),
        },
        table: {
            columns: ["what", "#bytes", ...others.map(([, name]) => `#${name}`)],
            rows: names.flatMap((name) => curves[name].map((point) => () => [textCell(name), cell(point.bytes, "bytes"), ...others.map(([member, , of]) => suiteCell(point[member], of))])),
        },
    };
}

function curvesOfSuite(run) {
    const latencies = [["median_s", "median", "s"], ["p99_s", "99 %", "s"]];
    return [
        curvesOverSizes("Collectives over message sizes", "Bus bandwidth: comparable over kinds and numbers of ranks.", run.collectives, "bus_bytes_per_s", "bytes/s",
            [["seconds", "time", "s"], ["algorithm_bytes_per_s", "bytes / time", "bytes/s"], ["bus_bytes_per_s", "bus bandwidth", "bytes/s"]]),
        curvesOverSizes("Latency between nodes over message sizes", "One way, from each node to its peers.", run.latencies?.between_nodes, "median_s", "s", latencies),
        curvesOverSizes("Latency within nodes over message sizes", "One way, between two ranks of a node.", run.latencies?.within_nodes, "median_s", "s", latencies),
    ];
}

// Every figure of the suite, as the terminal shows them.
function figuresOfSuite(run) {
    const names = Object.keys(run.metrics).filter((name) => name.startsWith("suite.") && name !== "suite.op_s");
    return names.length ? {
        title: "Figures of the suite", document: "run",
        table: { columns: ["metric", "#median", "#min", "#max"], rows: names.map((name) => () => [textCell(name.replace("suite.", "")), ...["median", "min", "max"].map((key) => suiteCell(run.metrics[name][key], run.metrics[name].unit))]) },
    } : null;
}

function outliersOfSuite(run) {
    const among = ["nodes", "gpus"].flatMap((what) => Object.entries(run[what]?.metrics || {}).filter(([, metric]) => Math.abs(metric.z) > OUTLIER).map(([name, metric]) =>
        `${metric.worst}: ${name} is ${suiteFigure(metric.values[run[what].names.indexOf(metric.worst)], unitOf(run, name))}, where the median is ${suiteFigure(metric.median, unitOf(run, name))} (robust z ${digits(metric.z)}).`));
    const pairs = Object.entries(run.nodes?.worst_pairs || {}).filter(([, pair]) => Math.abs(pair.z) > OUTLIER).map(([name, pair]) =>
        `${pair.nodes.join(" and ")}: ${name} is ${suiteFigure(pair.value, unitOf(run, name))}, where the median of the pairs is ${suiteFigure(pair.median, unitOf(run, name))}.`);
    const before = ["history", "gpu_history"].flatMap((what) => Object.entries(run[what]?.metrics || {}).map(([name, metric]) => [name, metric]).filter(([, metric]) => Math.abs(metric.z) > OUTLIER).map(([name, metric]) =>
        `${metric.node}: ${name} is ${suiteFigure(metric.value, unitOf(run, name))}, usually ${suiteFigure(metric.usual, unitOf(run, name))} in ${plural(metric.n, "earlier run")}.`));
    return [...among, ...pairs, ...before];
}
