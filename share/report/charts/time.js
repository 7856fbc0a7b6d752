// The run over time: throughput of all ranks, each rank as a line of a heat map, and the counters of the hosts.
"use strict";

const MOST_BINS = 200, MOST_LINES = 64;

function timelinesOf(run) {
    return run.time?.operations || [];
}

function ranksIn(entry) {
    return entry.ranks.reduce((total, rank) => total + (rank.ranks || 1), 0);
}

function nameOf(entry) {
    return `${entry.operation.replace("_", " ")}: ${entry.request}`;
}

// Bytes of all ranks by absolute bucket, from the first to the last that has any.
function bytesOverTime(entry) {
    const first = Math.min(...entry.ranks.map((rank) => rank.first_bucket));
    const last = Math.max(...entry.ranks.map((rank) => rank.first_bucket + rank.bytes.length));
    const sums = new Array(last - first).fill(0);
    for (const rank of entry.ranks) rank.bytes.forEach((value, index) => (sums[rank.first_bucket - first + index] += value));
    return { first, sums };
}

function throughputOverTime(run) {
    const entries = timelinesOf(run).filter((entry) => entry.bytes > 0 && !entry.operation.startsWith("baseline")); // which has a chart of its own
    if (!entries.length) return null;
    const lines = entries.map((entry) => {
        const { first, sums } = bytesOverTime(entry), width = entry.bucket_s;
        return { entry, points: [[first * width, 0], ...sums.map((value, index) => [(first + index + 0.5) * width, value / width]), [(first + sums.length) * width, 0]] };
    });
    const most = Math.max(...lines.flatMap((line) => line.points.map(([, value]) => value)));
    return {
        title: "Throughput over time", document: "run",
        note: "Bytes of the requests that completed, all ranks together, warm-up included; second 0 is the start of the attempt.",
        chart: {
            height: 320,
            words: entries.map((entry) => `${nameOf(entry)}: ${bytes(entry.bytes)} in ${plural(entry.requests, "request")}`).join("; "),
            option: (palette) => ({
                tooltip: { trigger: "axis", formatter: (points) => tip(`at ${digits(points[0].value[0])} s`, points.map((point) => [point.seriesName, figure(point.value[1], "bytes/s")])) },
                legend: {}, grid: { bottom: 26 }, dataZoom: [{ type: "inside", xAxisIndex: 0, zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false }],
                xAxis: axis(palette, { type: "value", name: "seconds", nameGap: 28, max: run.time.duration_s ?? undefined, axisLabel: { showMaxLabel: false } }),
                yAxis: bytesAxis(palette, most, "bytes/s"),
                series: lines.map(({ entry, points }, index) => ({ name: nameOf(entry), type: "line", showSymbol: false, areaStyle: { opacity: 0.25 },
                    lineStyle: { width: 1.5 }, itemStyle: { color: palette.hues[index % palette.hues.length] }, data: points })),
            }),
        },
        table: {
            columns: ["what", "#bytes", "#requests", "#one bucket", "#ranks"],
            rows: entries.map((entry) => () => [textCell(nameOf(entry)), cell(entry.bytes, "bytes"), cell(entry.requests, "count"), cell(entry.bucket_s, "s"), derivedCell(ranksIn(entry), String(ranksIn(entry)))]),
        },
    };
}

// Ranks and buckets are joined until the picture has at most MOST_LINES x MOST_BINS cells.
function binned(entry, ranks) {
    const together = Math.max(...entry.ranks.map((rank) => rank.ranks || 1));
    const first = Math.min(...entry.ranks.map((rank) => rank.first_bucket));
    const last = Math.max(...entry.ranks.map((rank) => rank.first_bucket + rank.bytes.length));
    const wide = Math.max(1, Math.ceil((last - first) / MOST_BINS)), high = together * Math.ceil(ranks / together / MOST_LINES);
    const cells = new Map();
    for (const rank of entry.ranks)
        rank.bytes.forEach((value, index) => {
            if (!value && !rank.in_flight_ns[index]) return;
            const column = Math.floor((rank.first_bucket - first + index) / wide), row = Math.floor(rank.rank / high), key = row * MOST_BINS * 2 + column;
            const cell = cells.get(key) || { column, row, bytes: 0, in_flight: 0 };
            cell.bytes += value;
            cell.in_flight += rank.in_flight_ns[index] / 1e9;
            cells.set(key, cell);
        });
    return { cells: [...cells.values()], columns: Math.ceil((last - first) / wide), rows: Math.ceil(ranks / high), start: first * entry.bucket_s, width: wide * entry.bucket_s, high };
}

function heatOfRanks(run, entry) {
    const ranks = ranksOf(run), moves = entry.bytes > 0; // a line of the document may have several ranks
    const { cells, columns, rows, start, width, high } = binned(entry, ranks);
    if (!cells.length || ranks < 2) return null;
    const value = (cell) => (moves ? cell.bytes : cell.in_flight) / width;
    const marks = (isStalled) => cells.filter((cell) => (moves && cell.bytes === 0) === isStalled).map((cell) => [cell.column, cell.row, value(cell), cell.in_flight / width]);
    const say = (amount) => (moves ? figure(amount, "bytes/s") : `${digits(amount)} in flight`);
    const most = Math.max(...cells.map(value), Number.MIN_VALUE);
    const rankName = (row) => (high === 1 ? String(row) : `${row * high}-${Math.min((row + 1) * high, ranks) - 1}`);
    return {
        title: `Each rank over time: ${nameOf(entry)}`, document: "run",
        note: moves ? "A line a rank: bytes of the requests that completed. Orange: requests were in flight and none completed. Empty: none was in flight." : "A line a rank: mean number of requests in flight.",
        chart: {
            height: 90 + Math.min(36, Math.max(6, Math.floor(360 / rows))) * rows,
            words: `${plural(rows, "line")} of ranks, ${plural(columns, "column")} of ${seconds(width)} from ${seconds(start)}; most ${say(most)}`,
            option: (palette) => ({
                tooltip: { trigger: "item", formatter: (point) => tip(`rank ${rankName(point.value[1])}`, [["from", `${digits(start + point.value[0] * width)} s`], ["", say(point.value[2])], ["in flight", digits(point.value[3])]]) },
                legend: false, grid: { top: 8, bottom: 58 },
                xAxis: axis(palette, { type: "category", name: "seconds", nameGap: 24, data: Array.from({ length: columns }, (_, column) => digits(start + column * width)), splitLine: { show: false } }),
                yAxis: axis(palette, { type: "category", inverse: true, data: Array.from({ length: rows }, (_, row) => rankName(row)), splitLine: { show: false } }),
                visualMap: { min: 0, max: most, dimension: 2, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, itemWidth: 10, text: [say(most), "0"], textStyle: { color: palette.text },
                    seriesIndex: 0, inRange: { color: [palette.isDark ? "#23405a" : "#d6e8f5", palette.hues[0]] } },
                series: [
                    { name: nameOf(entry), type: "heatmap", progressive: 0, data: marks(false) },
                    { name: "none completed", type: "heatmap", progressive: 0, itemStyle: { color: palette.hues[1] }, data: marks(true) },
                ],
            }),
        },
        table: {
            columns: ["#rank", "#ranks", "#first at", "#bytes", "#requests"],
            rows: entry.ranks.map((rank) => () => {
                const sum = (values) => values.reduce((total, each) => total + each, 0);
                const derived = [[rank.first_bucket * entry.bucket_s, "s"], [sum(rank.bytes), "bytes"], [sum(rank.requests), "count"]];
                return [cell(rank.rank, "count"), derivedCell(rank.ranks || 1, String(rank.ranks || 1)), ...derived.map(([value, unit]) => derivedCell(value, figure(value, unit)))];
            }),
        },
    };
}

function heatOfOperations(run) {
    return timelinesOf(run).filter((entry) => ["save", "load"].includes(entry.operation) && entry.requests > 0).map((entry) => heatOfRanks(run, entry));
}

// The hosts' counters on the same axis: each in its unit.
const COUNTERS = [
    { title: "CPU of the hosts", unit: "ratio", keys: [["cpu_fraction", "busy"]], rate: false },
    { title: "Disk of the hosts", unit: "bytes/s", keys: [["disk_written_bytes", "written"], ["disk_read_bytes", "read"]], rate: true },
    { title: "Network of the hosts", unit: "bytes/s", keys: [["sent_bytes", "sent"], ["received_bytes", "received"]], rate: true },
];

function countersOfHosts(run) {
    const hosts = run.time?.host || [];
    return COUNTERS.map(({ title, unit, keys, rate }) => {
        const lines = hosts.flatMap((host) => keys.filter(([key]) => host[key]?.some((value) => value)).map(([key, name]) => ({
            name: hosts.length > 1 ? `${host.node} ${name}` : name,
            points: host[key].map((value, index) => [(host.first_bucket + index + 0.5) * host.bucket_s, value === null ? null : rate ? value / host.bucket_s : value]),
            values: host[key], host,
        }))).slice(0, 16);
        if (!lines.length) return null;
        const text = (value) => (unit === "ratio" ? percent(value) : figure(value, unit));
        return {
            title, document: "run",
            note: `${hosts.length > 1 ? "Of the first nodes. " : ""}Second 0 is the start of the attempt.`,
            chart: {
                height: 220,
                words: lines.map((line) => `${line.name}: ${plural(line.points.length, "value")}`).join("; "),
                option: (palette) => ({
                    tooltip: { trigger: "axis", formatter: (points) => tip(`at ${digits(points[0].value[0])} s`, points.map((point) => [point.seriesName, point.value[1] === null ? "-" : text(point.value[1])])) },
                    legend: {}, grid: { bottom: 26 },
                    xAxis: axis(palette, { type: "value", name: "seconds", nameGap: 28, max: run.time.duration_s ?? undefined, axisLabel: { showMaxLabel: false } }),
                    yAxis: unit === "ratio" ? axis(palette, { type: "value", min: 0, max: 1, axisLabel: { formatter: percent } })
                        : bytesAxis(palette, Math.max(...lines.flatMap((line) => line.points.map(([, value]) => value || 0))), unit),
                    series: lines.map((line, index) => ({ name: line.name, type: "line", showSymbol: line.points.length < 2, lineStyle: { width: 1.5 }, itemStyle: { color: palette.hues[index % palette.hues.length] }, data: line.points })),
                }),
            },
            table: {
                columns: ["what", "#from", rate ? "#bytes" : "#share"],
                rows: lines.flatMap((line) => line.values.map((value, index) => () => [textCell(line.name), derivedCell((line.host.first_bucket + index) * line.host.bucket_s, `${digits((line.host.first_bucket + index) * line.host.bucket_s)} s`),
                    cell(value, rate ? "bytes" : "ratio")])),
            },
        };
    });
}
