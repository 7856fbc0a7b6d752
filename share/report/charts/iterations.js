// The time of each measured iteration, with the median of each operation as a line.
"use strict";

function iterationsOfRun(run) {
    const operations = ["save", "load", "verify"].filter((operation) => (run.iterations || {})[`${operation}.op_s`]?.length > 1);
    if (!operations.length) return null;
    const numbers = (operation, index) => (run.iteration_numbers[operation] || [])[index] ?? index + 1;
    const values = (operation) => run.iterations[`${operation}.op_s`];
    const median = (operation) => (run.metrics[`${operation}_s`] || run.metrics[`${operation}.op_s`] || {}).median;
    const points = operations.flatMap((operation) => values(operation).map((value, index) => ({ operation, number: numbers(operation, index), value })));
    return {
        title: "Iterations",
        note: "Each point is one save or load, from its first to its last rank. The line is the median.",
        document: "run",
        chart: {
            height: 300,
            words: operations.map((operation) => `${operation}: ${plural(values(operation).length, "iteration")}, median ${figure(median(operation), "s")}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "item", formatter: (point) => tip(`${operations[point.seriesIndex]} ${point.value[0]}`, [["", seconds(point.value[1])]]) },
                legend: {}, grid: { bottom: 24 },
                xAxis: axis(palette, { type: "value", name: "iteration", nameGap: 26, minInterval: 1, scale: true }),
                yAxis: axis(palette, { type: "value", min: 0, axisLabel: { formatter: seconds } }),
                dataZoom: zoomable(points.length, "xAxisIndex"),
                series: operations.map((operation, index) => ({
                    name: `${operation}, median ${figure(median(operation), "s")}`, type: "scatter", symbolSize: 9, itemStyle: { color: palette.hues[index] },
                    data: values(operation).map((value, at) => [numbers(operation, at), value]),
                    markLine: median(operation) === undefined ? undefined : {
                        symbol: "none", silent: true, lineStyle: { color: palette.hues[index], type: "solid" },
                        label: { show: false }, data: [{ yAxis: median(operation) }],
                    },
                })),
            }),
        },
        table: {
            columns: ["operation", "#iteration", "#time"],
            rows: points.map((point) => () => [textCell(point.operation), cell(point.number, "count"), cell(point.value, "s")]),
        },
    };
}
