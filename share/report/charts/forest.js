// The change of each metric with its 95 % interval, one line each, against no change.
"use strict";

// Primary metrics, and of the others those that moved, as compare prints them.
function shownMetrics(other) {
    return Object.entries(other.metrics).filter(([, metric]) => metric.change !== null && (metric.primary || (metric.p < 0.05 && Math.abs(metric.change) >= 0.03)));
}

// A horizontal bar from low to high with a point at the estimate. value: [estimate, line, low, high]
function interval(palette, colour) {
    return (_, api) => {
        const line = api.value(1), at = (value) => api.coord([value, line]);
        const [estimate, low, high] = [at(api.value(0)), at(api.value(2)), at(api.value(3))];
        const style = { stroke: colour, lineWidth: 2 };
        const end = (x) => ({ type: "line", shape: { x1: x, x2: x, y1: estimate[1] - 5, y2: estimate[1] + 5 }, style });
        const known = Number.isFinite(api.value(2)) && Number.isFinite(api.value(3));
        return {
            type: "group",
            children: [...(known ? [{ type: "line", shape: { x1: low[0], x2: high[0], y1: estimate[1], y2: estimate[1] }, style }, end(low[0]), end(high[0])] : []),
                { type: "circle", shape: { cx: estimate[0], cy: estimate[1], r: 5 }, style: { fill: colour, stroke: palette.ground } }],
        };
    };
}

const VERDICT_HUES = { better: "good", worse: "bad" };

function verdictInWords(metric) {
    if (metric.verdict === "inconclusive" && metric.more_runs) return `inconclusive: about ${plural(metric.more_runs, "more run")} a side would tell`;
    return metric.verdict;
}

// A line for each metric of each side, those of one metric together.
function forestOfChanges(others, base, title) {
    const shown = others.flatMap((other) => shownMetrics(other).map(([name, metric]) => ({ other, name, metric })));
    const names = [...new Set(shown.map(({ name }) => name))], several = others.length > 1;
    const rows = names.flatMap((name) => shown.filter((row) => row.name === name));
    if (!rows.length) return null;
    const edges = rows.flatMap(({ metric }) => [metric.change, ...metric.ci.filter((edge) => edge !== null)]);
    const reach = (value) => (value === null ? NaN : Math.max(-1, Math.min(value, 2))); // an interval to +900 % would hide the others
    const label = ({ name, other }) => (several ? `${name}, ${other.name}` : name);
    return {
        title, wide: several,
        note: `The typical change of ${several ? "each side" : others[0].name} against ${base.name}, with its 95 % interval. An interval that contains 0 % leaves open whether anything changed.${edges.some((edge) => edge > 2) ? " Cut at +200 %." : ""}`,
        chart: {
            height: 60 + (several ? 26 : 34) * rows.length,
            words: rows.map((row) => `${label(row)} ${change(row.metric.change)}, ${row.metric.verdict}`).join("; "),
            option: (palette, width) => ({
                tooltip: {
                    trigger: "item",
                    formatter: (point) => {
                        const { metric } = rows[point.data.value[1]];
                        return tip(label(rows[point.data.value[1]]), [["change", change(metric.change)], ["interval", metric.ci[0] === null ? "too few runs" : `${change(metric.ci[0])} to ${change(metric.ci[1])}`], ["verdict", verdictInWords(metric)]]);
                    },
                },
                legend: false,
                xAxis: axis(palette, { type: "value", boundaryGap: ["4%", "4%"], axisLabel: { formatter: (value) => change(value).replace(/\.0(?=\D)/, "") } }),
                yAxis: axis(palette, { type: "category", inverse: true, data: rows.map(label), axisLabel: { width: width < 500 ? 110 : 260, overflow: "truncate", interval: 0 } }),
                series: [{
                    name: "change", type: "custom", encode: { x: [0, 2, 3], y: 1 }, clip: true,
                    renderItem: (parameters, api) => {
                        const { metric } = rows[parameters.dataIndex];
                        return interval(palette, palette[VERDICT_HUES[metric.verdict]] || palette.hues[metric.primary ? 0 : 5])(parameters, api);
                    },
                    data: rows.map(({ metric }, line) => ({ value: [reach(metric.change), line, reach(metric.ci[0]), reach(metric.ci[1])] })),
                    markLine: { symbol: "none", silent: true, label: { show: false }, lineStyle: { color: palette.text, type: "solid", width: 1 }, data: [{ xAxis: 0 }] },
                }],
            }),
        },
        table: {
            columns: ["median of", ...(several ? ["side", "#runs"] : []), "#typical change", "#from", "#to", "verdict", "#p", `#${base.name} (n=${base.n})`, several ? "#side" : `#${others[0].name} (n=${others[0].n})`],
            rows: rows.map(({ other, name, metric }) => () => [textCell(name), ...(several ? [textCell(other.name), cell(other.n, "count")] : []), changeCell(metric.change), changeCell(metric.ci[0]), changeCell(metric.ci[1]),
                textCell(verdictInWords(metric)), cell(metric.p), cell(metric.base, metric.unit), cell(metric.other, metric.unit)]),
        },
    };
}

function changeCell(value) {
    return element("td", { class: "figure", "data-value": JSON.stringify(value) }, value === null ? "-" : change(value));
}
