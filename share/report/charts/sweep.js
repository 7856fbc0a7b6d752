// A metric over the key that a sweep varies: medians with their 95 % interval, one line for each combination of the other keys.
"use strict";

// The key on the axis: the one with the most values. Values in order of their numbers ("4MiB" after "512KiB"), else as they came.
function sweptAxis(sweep) {
    const values = (key) => [...new Set([...sweep.combinations].sort((a, b) => a.combination - b.combination).map((combination) => combination.values[key]))];
    const units = { K: 1024, M: 1024 ** 2, G: 1024 ** 3, T: 1024 ** 4 };
    const number = (text) => {
        const [, digits, unit] = /^([\d.]+)([KMGT]?)/.exec(text) || [];
        return digits === undefined ? NaN : Number(digits) * (units[unit] || 1);
    };
    const key = [...sweep.varied].sort((a, b) => values(b).length - values(a).length)[0];
    const ordered = values(key);
    if (ordered.every((value) => !Number.isNaN(number(value)))) ordered.sort((a, b) => number(a) - number(b));
    return { key, values: ordered };
}

function curveOfSweep(sweep, name) {
    const of = (combination) => combination.metrics[name];
    const combinations = sweep.combinations.filter(of);
    if (combinations.length < 2 || !sweep.varied.length) return null;
    const { key, values } = sweptAxis(sweep);
    const others = (combination) => sweep.varied.filter((other) => other !== key).map((other) => `${other}=${combination.values[other]}`).join(" ");
    const lines = [...new Set(combinations.map(others))];
    const { unit } = of(combinations[0]);
    const isAt = (combination) => values.indexOf(combination.values[key]);
    const points = (line) => combinations.filter((combination) => others(combination) === line).sort((a, b) => isAt(a) - isAt(b));
    const hasIntervals = combinations.some((combination) => of(combination).ci[0] !== null);
    return {
        title: `${name} over ${key}`,
        note: `Medians of the runs that passed${hasIntervals ? ", with the 95 % interval of the median (Student's t on logarithms)" : "; three runs of a combination would give intervals"}.`,
        document: "sweep",
        chart: {
            height: 320,
            words: combinations.map((combination) => `${Object.values(combination.values).join(" ")}: ${figure(of(combination).median, unit)}`).join("; "),
            option: (palette) => ({
                tooltip: {
                    trigger: "item",
                    formatter: (point) => {
                        const metric = of(point.data.combination);
                        return tip(sweep.varied.map((other) => `${other}=${point.data.combination.values[other]}`).join(" "), [["median", figure(metric.median, unit)],
                            ["interval", metric.ci[0] === null ? "too few runs" : `${figure(metric.ci[0], unit)} to ${figure(metric.ci[1], unit)}`], ["runs", String(metric.n)]]);
                    },
                },
                legend: lines.length > 1 ? {} : false, grid: { bottom: 26 },
                xAxis: axis(palette, { type: "category", data: values, name: key, nameGap: 28, axisLabel: { overflow: "truncate", width: 90 } }),
                yAxis: axis(palette, { type: "value", scale: true, boundaryGap: ["8%", "8%"], axisLabel: { formatter: (value) => figure(value, unit) } }),
                series: lines.flatMap((line, index) => {
                    const colour = palette.hues[index % palette.hues.length];
                    const data = points(line);
                    return [
                        { name: line || name, type: "line", symbolSize: 9, itemStyle: { color: colour }, data: data.map((combination) => ({ value: [isAt(combination), of(combination).median], combination })) },
                        {
                            name: line || name, type: "custom", silent: true, encode: { x: 0, y: [1, 2] }, itemStyle: { color: colour },
                            data: data.filter((combination) => of(combination).ci[0] !== null).map((combination) => [isAt(combination), ...of(combination).ci]),
                            renderItem: (_, api) => {
                                const [low, high] = [api.coord([api.value(0), api.value(1)]), api.coord([api.value(0), api.value(2)])];
                                const bar = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colour, lineWidth: 1.5 } });
                                return { type: "group", children: [bar(low[0], low[1], high[0], high[1]), bar(low[0] - 5, low[1], low[0] + 5, low[1]), bar(high[0] - 5, high[1], high[0] + 5, high[1])] };
                            },
                        },
                    ];
                }),
            }),
        },
        table: {
            columns: [...sweep.varied, "#runs", "#median", "#from", "#to", "#min", "#max"],
            rows: combinations.map((combination) => () => {
                const metric = of(combination);
                return [...sweep.varied.map((other) => textCell(combination.values[other])), cell(metric.n, "count"), ...[metric.median, ...metric.ci, metric.min, metric.max].map((value) => cell(value, unit))];
            }),
        },
    };
}

function curvesOfSweep(sweep) {
    const names = [...new Set(sweep.combinations.flatMap((combination) => Object.keys(combination.metrics)))];
    return names.map((name) => curveOfSweep(sweep, name));
}

function runsOfSweep(sweep) {
    const runs = sweep.combinations.flatMap((combination) => combination.runs.map((run) => ({ ...run, combination })));
    return {
        title: "Runs", document: "sweep", wide: true,
        table: {
            columns: ["run", ...sweep.varied, "#block", "state", "outcome", "message"],
            rows: runs.map((run) => () => [textCell(run.run), ...sweep.varied.map((key) => textCell(run.combination.values[key])), cell(run.block, "count"), textCell(run.state), textCell(run.outcome), textCell(run.message)]),
        },
    };
}
