// What a warm pool cost: node-hours that ran, booted and were idle, and the runs that went through it.
"use strict";

const HOUR = 3600;

function nodeHours(value) {
    return `${digits(value)}${BLANK}node-hours`;
}

// [[what, node-hours]]: the parts add up to what the pool cost. Runs of mode=touch have jobs of their own.
function partsOfPool(pool, runs) {
    const ofRuns = pool.mode === "hold" ? runs.reduce((total, run) => total + (run.nodes * (run.run_s || 0)) / HOUR, 0) : 0;
    const booting = Math.min((pool.nodes * pool.boot_s) / HOUR, Math.max(pool.job_node_hours - ofRuns, 0));
    return [["runs", ofRuns], ["booting", booting], [pool.mode === "hold" ? "idle" : "touches", Math.max(pool.job_node_hours - ofRuns - booting, 0)],
        [pool.mode === "hold" ? "failed boots" : "kept up between touches, failed boots", pool.node_hours - pool.job_node_hours]].filter(([, hours]) => hours > 0);
}

function costOfPool(pool, parts) {
    if (!parts.length) return null;
    return {
        title: "Where the node-hours went", document: "pool",
        note: "Booting is all nodes for as long as the longest boot took. What is neither runs nor booting was idle.",
        chart: {
            height: 130,
            words: parts.map(([name, hours]) => `${name}: ${nodeHours(hours)}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "item", formatter: ({ seriesName, value }) => tip(seriesName, [["", nodeHours(value)]]) },
                legend: {}, grid: { bottom: 26 },
                xAxis: axis(palette, { type: "value", name: "node-hours", nameGap: 28 }),
                yAxis: axis(palette, { type: "category", data: [pool.pool] }),
                series: parts.map(([name, hours], index) => ({ name, type: "bar", stack: "cost", barMaxWidth: 34, itemStyle: { color: name === "idle" ? palette.grey : palette.hues[index] }, data: [hours] })),
            }),
        },
        table: {
            columns: ["part", "#node-hours", "#share"],
            rows: [...parts, ["in all", pool.node_hours]].map(([name, hours]) => () => [textCell(name), derivedCell(hours, digits(hours)), derivedCell(hours / pool.node_hours, percent(hours / pool.node_hours))]),
        },
    };
}

function runsOfPool(pool, runs) {
    if (!runs.length) return null;
    const hours = (run) => (run.run_s === null ? null : (run.nodes * run.run_s) / HOUR);
    return {
        title: "Node-hours of each run", document: "runs", note: pool.mode === "hold" ? "Inside the pool's allocation." : "In jobs of their own: not part of the pool's cost.",
        chart: {
            height: 280,
            words: runs.map((run) => `${run.run}: ${nodeHours(hours(run))}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "item", formatter: ({ name, value }) => tip(name, [["", nodeHours(value)]]) },
                legend: false, dataZoom: zoomable(runs.length, "xAxisIndex"),
                xAxis: axis(palette, { type: "category", data: runs.map((run) => run.run), axisLabel: { width: 110, overflow: "truncate" } }),
                yAxis: axis(palette, { type: "value", axisLabel: { formatter: (value) => String(Number(value.toPrecision(3))) } }),
                series: [{ name: "node-hours", type: "bar", barMaxWidth: 40, itemStyle: { color: palette.hues[0] }, data: runs.map(hours) }],
            }),
        },
        table: {
            columns: ["run", "outcome", "#nodes", "#time", "#node-hours", "#in the queue", "#waited for boots"],
            rows: runs.map((run) => () => [textCell(run.run), textCell(run.outcome || run.state), cell(run.nodes, "count"), cell(run.run_s, "s"), derivedCell(hours(run), digits(hours(run))), cell(run.queue_s, "s"), cell(run.boot_s, "s")]),
        },
    };
}

function pageOfPool({ pool: { data: [pool] }, runs: { data: runs } }) {
    const parts = partsOfPool(pool, runs), date = (ns) => new Date(ns / 1e6).toISOString().slice(0, 16).replace("T", " ");
    const shares = pool.node_hours > 0 ? `: ${parts.map(([name, hours]) => `${percent(hours / pool.node_hours)} ${name}`).join(", ")}` : "";
    return {
        heading: `Pool ${pool.pool}`,
        about: `mode=${pool.mode}, ${plural(pool.nodes, "node")}, from ${date(pool.created_ns)} UTC ${pool.ended_ns ? `to ${date(pool.ended_ns)} UTC` : `on, until ${date(pool.expires_ns)} UTC at most`}`,
        answer: [
            says(`It has cost ${digits(pool.node_hours)} of ${nodeHours(pool.budget_node_hours)}${shares}.`),
            says(`${plural(pool.runs, "run")} went through it${pool.saved_s > 0 ? ` and saved ${seconds(pool.saved_s)} of waiting for nodes to boot` : ""}.`),
            ...(pool.failed_boots ? [says(`${plural(pool.failed_boots, "boot")} failed.`, "bad")] : []),
            ...(pool.note ? [says(`It ended: ${pool.note}.`)] : []),
        ],
        sections: [costOfPool(pool, parts), runsOfPool(pool, runs), {
            title: "What the history has of it", document: "pool", wide: true,
            table: {
                columns: ["#nodes", "#budget", "#node-hours", "#of its jobs", "#jobs", "#failed boots", "#longest boot", "#runs", "#saved"],
                rows: [() => [cell(pool.nodes, "count"), ...["budget_node_hours", "node_hours", "job_node_hours"].map((key) => cell(pool[key])), cell(pool.jobs, "count"), cell(pool.failed_boots, "count"), cell(pool.boot_s, "s"), cell(pool.runs, "count"), cell(pool.saved_s, "s")]],
            },
        }],
    };
}
