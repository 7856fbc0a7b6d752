// The value of every run of both sides; runs of one block, which ran in turn, are joined by a line.
"use strict";

function pairedRuns(other, base, name) {
    const of = (side) => other.runs_compared[side].filter((run) => run.metrics[name] !== null && run.metrics[name] !== undefined);
    const sides = [["base", base.name], ["other", other.name]];
    const runs = sides.flatMap(([side, named], at) => of(side).map((run) => ({ ...run, side: named, at, value: run.metrics[name] })));
    if (runs.length < 3) return null;
    const { unit } = other.metrics[name];
    const pairs = runs.filter((run) => run.at === 0 && run.sweep !== null).flatMap((run) => {
        const partner = runs.find((another) => another.at === 1 && another.sweep === run.sweep && another.block === run.block);
        return partner ? [[run, partner]] : [];
    });
    return {
        title: `${name} of each run: ${other.name} against ${base.name}`,
        note: `Each point is the median of one run.${pairs.length ? " A line joins runs of one block, which ran in turn." : ""}`,
        chart: {
            height: 320,
            words: sides.map(([side, named]) => `${named}: ${of(side).map((run) => figure(run.metrics[name], unit)).join(", ")}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "item", formatter: (point) => (point.data.run ? tip(point.data.run.run, [[name, figure(point.data.run.value, unit)], ["block", String(point.data.run.block)]]) : null) },
                legend: false,
                xAxis: axis(palette, { type: "category", data: sides.map(([, named]) => named), axisLabel: { interval: 0, overflow: "truncate", width: 150 } }),
                yAxis: axis(palette, { type: "value", scale: true, boundaryGap: ["8%", "8%"], axisLabel: { formatter: (value) => figure(value, unit) } }),
                series: [
                    { name, type: "scatter", symbolSize: 10, itemStyle: { opacity: 0.8 },
                        data: runs.map((run) => ({ value: [run.at, run.value], run, itemStyle: { color: palette.hues[run.at] } })),
                        markLine: undefined },
                    ...pairs.map((pair) => ({ name: `block ${pair[0].block}`, type: "line", silent: true, showSymbol: false, lineStyle: { color: palette.quiet, width: 1 }, data: pair.map((run) => [run.at, run.value]) })),
                ],
            }),
        },
        table: {
            columns: ["run", "side", "#block", `#${name}`],
            rows: runs.map((run) => () => [textCell(run.run), textCell(run.side), cell(run.block, "count"), cell(run.value, unit)]),
        },
    };
}

function pairedOfPrimaries(other, base) {
    const seen = new Set(); // a quantity under two names is drawn once
    return Object.entries(other.metrics).filter(([, metric]) => {
        const same = JSON.stringify([metric.base, metric.other, metric.change]);
        return metric.primary && metric.change !== null && !seen.has(same) && seen.add(same);
    }).map(([name]) => pairedRuns(other, base, name));
}
