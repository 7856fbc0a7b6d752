// How long requests to the store took: percentiles of each operation on a logarithmic axis, and the slowest requests.
"use strict";

const PERCENTILES = [["p50_s", "median"], ["p90_s", "90 %"], ["p99_s", "99 %"], ["p999_s", "99.9 %"], ["max_s", "slowest"]];

function latencyOfRequests(run) {
    const operations = Object.keys(run.latency || {}).filter((operation) => run.latency[operation].requests > 0);
    if (!operations.length) return null;
    return {
        title: "Latency of requests",
        note: "The share of requests that took at most this long.",
        document: "run",
        chart: {
            height: 300,
            words: operations.map((operation) => `${operation}: median ${seconds(run.latency[operation].p50_s)}, slowest ${seconds(run.latency[operation].max_s)}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "axis", formatter: (points) => tip(points[0].name, points.map((point) => [point.seriesName, seconds(point.value)])) },
                legend: {},
                xAxis: axis(palette, { type: "category", data: PERCENTILES.map(([, name]) => name) }),
                yAxis: axis(palette, { type: "log", axisLabel: { formatter: seconds } }),
                series: operations.map((operation, index) => ({
                    name: operation.replace("_", " "), type: "line", symbolSize: 8, lineStyle: { width: 2 }, itemStyle: { color: palette.hues[index % palette.hues.length] },
                    data: PERCENTILES.map(([key]) => run.latency[operation][key]),
                })),
            }),
        },
        table: {
            columns: ["operation", "#requests", "#mean", ...PERCENTILES.map(([, name]) => `#${name}`)],
            rows: operations.map((operation) => () => {
                const of = run.latency[operation];
                return [textCell(operation.replace("_", " ")), cell(of.requests, "count"), cell(of.mean_s, "s"), ...PERCENTILES.map(([key]) => cell(of[key], "s"))];
            }),
        },
    };
}

function slowestRequests(run) {
    const requests = ["save", "load"].flatMap((operation) => (((run.latency || {})[operation] || {}).slowest || []).map((request) => ({ operation, ...request })));
    if (!requests.length) return null;
    return {
        title: "The slowest requests",
        document: "run",
        table: {
            columns: ["operation", "#took", "request", "#rank", "#iteration", "file", "#offset", "#bytes"],
            rows: requests.map((request) => () => [textCell(request.operation), cell(request.latency_s, "s"), textCell(request.request), cell(request.rank, "count"),
                cell(request.iteration, "count"), textCell(request.file), cell(request.offset, "count"), cell(request.bytes, "bytes")]),
        },
    };
}
