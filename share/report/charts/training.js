// A training over its steps: loss, tokens a second, and the time of steps and saves, with the saves on each.
"use strict";

function valuesOfSteps(run, metric) {
    const values = (run.iterations || {})[`step.${metric}`] || [];
    const numbers = run.iteration_numbers?.[`step.${metric}`] || run.iteration_numbers?.step || [];
    return values.map((value, index) => [numbers[index], value]);
}

// Saves stand between the last step before them and the first after.
function savesOfTraining(run) {
    const values = (run.iterations || {})["save.op_s"] || [];
    return values.map((value, index) => [run.iteration_numbers.save[index] - 0.5, value]);
}

function overSteps(run, { title, note, lines, unit, savesAsMarks, height }) {
    const known = lines.filter((line) => line.values.length);
    if (lines[0].values.length < 2) return null; // no training
    const saves = savesOfTraining(run);
    const rows = known.flatMap((line) => line.values.map(([step, value]) => ({ line, step: line.stepOf ? line.stepOf(step) : step, value })));
    return {
        title, note: note + (savesAsMarks && saves.length ? " Dashed lines are saves." : ""), document: "run",
        chart: {
            height: height || 280,
            words: known.map((line) => `${line.name}: ${plural(line.values.length, "value")}, from ${figure(line.values[0][1], unit)} to ${figure(line.values[line.values.length - 1][1], unit)}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "axis", formatter: (points) => tip(`step ${Math.ceil(points[0].value[0])}`, points.map((point) => [point.seriesName, figure(point.value[1], unit)])) },
                legend: {}, grid: { bottom: 26 }, dataZoom: zoomable(known[0].values.length, "xAxisIndex"),
                xAxis: axis(palette, { type: "value", name: "step", nameGap: 28, minInterval: 1, scale: true }),
                yAxis: axis(palette, { type: "value", scale: !known.some((line) => line.bars), axisLabel: { formatter: (value) => figure(value, unit) } }),
                series: known.map((line, index) => ({
                    name: line.name, type: line.bars || line.points ? (line.bars ? "bar" : "scatter") : "line", showSymbol: line.values.length < 40, symbolSize: line.points ? 9 : 5,
                    sampling: "lttb", barWidth: 6, itemStyle: { color: palette.hues[line.hue ?? index] }, data: line.values,
                    markLine: index || !savesAsMarks || saves.length > 200 ? undefined : {
                        symbol: "none", silent: true, label: { show: false }, lineStyle: { color: palette.quiet, type: "dashed", width: 1 },
                        data: saves.map(([step]) => ({ xAxis: step })),
                    },
                })),
            }),
        },
        table: {
            columns: ["what", "#step", "#value"],
            rows: rows.map((row) => () => [textCell(row.line.name), cell(row.step, "count"), cell(row.value, unit)]),
        },
    };
}

function lossOfTraining(run) {
    return overSteps(run, {
        title: "Loss", note: "The mean of the step's samples of all ranks.", savesAsMarks: true,
        lines: [{ name: "loss", values: valuesOfSteps(run, "loss") }, { name: "validation loss", values: valuesOfSteps(run, "validation_loss"), points: true }],
    });
}

function tokensOfTraining(run) {
    return overSteps(run, {
        title: "Tokens a second", note: "All ranks together.", unit: "tokens/s", savesAsMarks: true,
        lines: [{ name: "tokens a second", values: valuesOfSteps(run, "tokens_per_s"), hue: 2 }],
    });
}

function stepsAndSaves(run) {
    const goodput = (run.metrics.train_goodput || {}).median;
    return overSteps(run, {
        title: "Steps and saves", unit: "s",
        note: `The time of each step, and of each save at the step before which it ended.${goodput === undefined ? "" : ` ${percent(goodput)} of the time went into steps at their own pace.`}`,
        lines: [
            { name: "step", values: valuesOfSteps(run, "op_s") },
            { name: "save", values: savesOfTraining(run), bars: true, stepOf: (step) => step + 0.5 },
        ],
    });
}
