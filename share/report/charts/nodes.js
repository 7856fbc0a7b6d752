// The rate of each node, the slowest first.
"use strict";

function ratesOfNodes(run, operation) {
    const nodes = (run.node_rates || {})[operation] || [];
    if (nodes.length < 2) return null;
    const sorted = [...nodes].sort((a, b) => a.bytes_per_s - b.bytes_per_s);
    return {
        title: `Nodes: ${operation}`,
        note: "Bytes that the ranks of a node moved, over the time of its slowest rank. The slowest node is on the left.",
        document: "run",
        chart: {
            height: 300,
            words: `${plural(nodes.length, "node")}; the slowest is ${sorted[0].node} with ${figure(sorted[0].bytes_per_s, "bytes/s")}`,
            option: (palette) => ({
                tooltip: { trigger: "axis", formatter: (points) => tip(points[0].name, [["rate", figure(points[0].value, "bytes/s")], ["time", seconds(sorted[points[0].dataIndex].own_s)]]) },
                legend: false, dataZoom: zoomable(nodes.length, "xAxisIndex"),
                xAxis: axis(palette, { type: "category", data: sorted.map((node) => node.node), axisLabel: { rotate: nodes.length > 8 ? 45 : 0, overflow: "truncate", width: 90 } }),
                yAxis: bytesAxis(palette, Math.max(...nodes.map((node) => node.bytes_per_s)), "bytes/s"),
                series: [{ name: "rate", type: "bar", barMaxWidth: 50, itemStyle: { color: palette.hues[0] }, data: sorted.map((node) => node.bytes_per_s) }],
            }),
        },
        table: {
            columns: ["node", "#ranks", "#bytes moved", "#time", "#rate"],
            rows: sorted.map((node) => () => [textCell(node.node), cell(node.ranks, "count"), cell(node.bytes_moved, "bytes"), cell(node.own_s, "s"), cell(node.bytes_per_s, "bytes/s")]),
        },
    };
}
