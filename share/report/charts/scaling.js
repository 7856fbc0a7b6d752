// How the time of a save or load depends on the number of ranks or nodes: what was measured, and the fitted model.
"use strict";

function termInWords({ value, ci: [low, high] }, unit, what) {
    const text = (number) => figure(number, unit);
    if (unit === "s" && low === 0) return `${what} at most ${text(high)}`;
    if (unit !== "s" && high === null) return `${what} at least ${text(low)}`;
    return `${what} ${text(value)} [${text(low)}, ${text(high)}]`;
}

function modelInWords({ model, no_model: reason }, key) {
    if (!model) return `There is no model: ${reason}.`;
    const terms = [["fixed_s", "s", "fixed"], ["unit_bytes_per_s", "bytes/s", `one ${key.replace(/s$/, "")}`], ["shared_bytes_per_s", "bytes/s", "shared limit"], ["log_s", "s", `per ln(${key})`]];
    return `The model, with 95 % intervals: ${terms.map(([name, unit, what]) => termInWords(model[name], unit, what)).join("; ")}. A run is within ${percent(model.deviation)} of it.`;
}

// The time that the model gives n units that move so many bytes.
function modelledSeconds({ fixed_s: fixed, unit_bytes_per_s: unit, shared_bytes_per_s: shared, log_s: log }, n, moved) {
    const over = (rate, bytesOfRate) => (rate.value ? bytesOfRate / rate.value : 0); // an unlimited rate has no value
    return fixed.value + Math.max(over(unit, moved / n), over(shared, moved)) + log.value * Math.log(n);
}

// Bytes between two sizes lie on the line between them.
function modelCurve(sizes, model) {
    const points = [...sizes].sort((a, b) => a.n - b.n), bytesOf = (size) => size.seconds * size.bytes_per_s, steps = 24;
    return points.slice(1).flatMap((size, index) => Array.from({ length: steps + 1 }, (_, step) => {
        const from = points[index], share = step / steps, n = from.n + share * (size.n - from.n);
        return [n, modelledSeconds(model, n, bytesOf(from) + share * (bytesOf(size) - bytesOf(from)))];
    }));
}

function scalingOfSizes({ scaling }, document) {
    if (!scaling) return [];
    return ["save", "load"].filter((operation) => scaling[operation]?.sizes.length > 1).map((operation) => {
        const { sizes, model } = scaling[operation], { key } = scaling;
        return {
            title: `${operation} over ${key}: the model`, document,
            note: `Medians of each size. ${modelInWords(scaling[operation], key)}`,
            chart: {
                height: 300,
                words: sizes.map((size) => `${size.n} ${key}: ${seconds(size.seconds)}, efficiency ${percent(size.efficiency)}`).join("; "),
                option: (palette) => ({
                    tooltip: { trigger: "item", formatter: ({ seriesName, value }) => tip(`${digits(value[0])} ${key}`, [[seriesName, seconds(value[1])]]) },
                    legend: {}, grid: { bottom: 26 },
                    xAxis: axis(palette, { type: "value", name: key, nameGap: 28, scale: true }),
                    yAxis: axis(palette, { type: "value", min: 0, axisLabel: { formatter: seconds } }),
                    series: [
                        { name: "measured", type: "scatter", symbolSize: 9, itemStyle: { color: palette.hues[0] }, data: sizes.map((size) => [size.n, size.seconds]) },
                        ...(model ? [{ name: "model", type: "line", showSymbol: false, lineStyle: { width: 2 }, itemStyle: { color: palette.hues[1] }, data: modelCurve(sizes, model) }] : []),
                    ],
                }),
            },
            table: {
                columns: [`#${key}`, "#runs", "#time", "#rate", "#efficiency", ...(model ? ["#model"] : [])],
                rows: sizes.map((size) => () => [cell(size.n, "count"), cell(size.runs, "count"), cell(size.seconds, "s"), cell(size.bytes_per_s, "bytes/s"), cell(size.efficiency),
                    ...(model ? [modelledSeconds(model, size.n, size.seconds * size.bytes_per_s)].map((value) => derivedCell(value, seconds(value))) : [])]),
            },
        };
    });
}
