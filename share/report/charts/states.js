// Where the time of each rank went: exclusive time in each state, stacked, a column a rank.
"use strict";

// In the order in which an operation passes through them; hue: index in the page's colours, null: grey.
const STATES = [
    { key: "plan_s", name: "plan", hue: 7 }, { key: "stage_s", name: "stage", hue: 5 }, { key: "serialize_s", name: "serialize", hue: 2 },
    { key: "io_s", name: "write", loadName: "read", hue: 0 }, { key: "fsync_s", name: "fsync", hue: 4 },
    { key: "exchange_s", name: "exchange", hue: 3 }, { key: "commit_s", name: "commit", hue: 1 },
    { key: "in_backoff_s", name: "backoff", hue: 6 }, { key: "other_s", name: "other", hue: null, pale: true }, { key: "wait_s", name: "wait", hue: null },
];

function statesOfRanks(run, operation) {
    const ranks = (run.ranks || {})[operation] || [];
    const states = STATES.filter((state) => ranks.some((rank) => rank[state.key] > 0));
    if (!ranks.length || !states.length) return null;
    const name = (state) => (operation === "load" && state.loadName) || state.name;
    const slowest = (run.slowest_rank || {})[operation];
    return {
        title: `Where the time of each rank went: ${operation}`,
        note: `Medians over the iterations. A rank is in one state at a time: the one that it is blocked on.${slowest ? ` Rank ${slowest.rank} was the slowest most often.` : ""}`,
        document: "run",
        chart: {
            height: 320,
            words: `Columns of ${plural(ranks.length, "rank")}: time in ${states.map(name).join(", ")}`,
            option: (palette) => ({
                tooltip: {
                    trigger: "axis", axisPointer: { type: "shadow" },
                    formatter: (points) => {
                        const rank = ranks[points[0].dataIndex];
                        return tip(`rank ${rank.rank}`, [["whole", seconds(rank.op_s)], ...states.filter((state) => rank[state.key] > 0).map((state) => [name(state), seconds(rank[state.key])])]);
                    },
                },
                legend: {}, dataZoom: zoomable(ranks.length, "xAxisIndex", 64),
                grid: { bottom: 24 },
                xAxis: axis(palette, { type: "category", data: ranks.map((rank) => String(rank.rank)), name: "rank", nameGap: 26 }),
                yAxis: axis(palette, { type: "value", axisLabel: { formatter: seconds } }),
                series: states.map((state) => ({
                    name: name(state), type: "bar", stack: "time", barMaxWidth: 60, barCategoryGap: ranks.length > 64 ? "0%" : "20%",
                    itemStyle: { color: state.hue === null ? palette.grey : palette.hues[state.hue], opacity: state.pale ? 0.5 : 1 },
                    data: ranks.map((rank) => rank[state.key]),
                })),
            }),
        },
        table: {
            columns: ["#rank", "#whole", "#own part", ...states.map((state) => `#${name(state)}`), "#bytes moved"],
            rows: ranks.map((rank) => () => [cell(rank.rank, "count"), cell(rank.op_s, "s"), cell(rank.own_s, "s"), ...states.map((state) => cell(rank[state.key], "s")), cell(rank.bytes_moved, "bytes")]),
        },
    };
}
