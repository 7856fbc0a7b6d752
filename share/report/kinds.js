// What each kind of page shows: a heading, the answer in words, and the sections in their order.
"use strict";

// A sentence with its figures in words. {class, text} marks one.
function says(text, kind) {
    return element("p", { class: kind ? `answer ${kind}` : "answer" }, text);
}

function where(experiment) {
    return `${experiment.model} on ${experiment.store}`;
}

function ranksOf(run) {
    const of = Object.values(run.ranks || {})[0] || [];
    return of.length || run.experiment.ranks;
}

function answerOfOperation(run, operation) {
    const time = run.metrics[`${operation}_s`];
    if (!time) return null;
    const rate = (run.metrics[`${operation}_bytes_per_s`] || {}).median;
    const share = run.limits[`${operation}_limit_fraction`];
    const parts = Object.entries((run.states || {})[operation] || {}).filter(([, part]) => part >= 0.05).sort((a, b) => b[1] - a[1]).slice(0, 3);
    const slowest = (run.slowest_rank || {})[operation];
    let text = `A ${operation} takes ${seconds(time.median)} (${seconds(time.min)} to ${seconds(time.max)} in ${plural(time.n, "iteration")})`;
    if (rate !== undefined) text += `: ${figure(rate, "bytes/s")}`;
    if (share !== null && share !== undefined) text += `, ${percent(share)} of what the device can do`;
    text += ".";
    if (parts.length) text += ` Its time goes into ${parts.map(([name, part]) => `${name} (${percent(part)})`).join(", ")}.`;
    if (slowest && ranksOf(run) > 1) {
        text += ` Rank ${slowest.rank} is the slowest in ${percent(slowest.share)} of the iterations, ${percent(slowest.excess)} above the mean`;
        text += slowest.state ? `, because of ${slowest.state === "io" ? (operation === "load" ? "read" : "write") : slowest.state}.` : ".";
    }
    return text;
}

function answerOfRun(run) {
    const sentences = [];
    if (run.outcome !== "pass") sentences.push(says(`This run did not pass: ${run.outcome || run.state}${run.message ? `: ${run.message}` : ""}.`, "bad"));
    sentences.push(...["save", "load", "verify"].map((operation) => answerOfOperation(run, operation)).filter(Boolean).map((text) => says(text)));
    const { verified } = run;
    if (verified.of) sentences.push(says(`${verified.iterations === verified.of ? "Every byte was checked and right" : "Bytes were checked"} in ${verified.iterations} of ${plural(verified.of, "iteration")}.`, verified.iterations === verified.of ? null : "bad"));
    if (run.metrics.goodput) sentences.push(says(`Of the time of a training ${(100 * run.metrics.goodput.median).toFixed(2)} % would remain after saves and failures, with a save every ${seconds(run.metrics.best_interval_s.median)} and a failure every ${run.experiment.mtbf}.`));
    return sentences;
}

function failuresOfRun(run) {
    if (!run.failures?.length) return null;
    return {
        title: "What was wrong", document: "run",
        table: { columns: ["#rank", "kind", "said"], rows: run.failures.map((failure) => () => [cell(failure.rank, "count"), textCell(failure.code), textCell(failure.text)]) },
    };
}

function metricsOfRun(run) {
    const names = Object.keys(run.metrics);
    return {
        title: "All metrics", note: "docs/metrics.md says what each means.", document: "run", wide: true,
        table: {
            columns: ["metric", "#n", "#median", "#95 %", "#min", "#max", "#mean"],
            rows: names.map((name) => () => {
                const metric = run.metrics[name];
                return [textCell(name), cell(metric.n, "count"), ...["median", "p95", "min", "max", "mean"].map((key) => cell(metric[key], metric.unit))];
            }),
        },
    };
}

function settingsOfRun(run) {
    const rows = Object.entries({ ...run.experiment, ...Object.fromEntries(Object.entries(run.labels).map(([name, value]) => [`label.${name}`, value])) }).filter(([, value]) => value !== "");
    return { title: "Experiment", document: "run", wide: true, table: { columns: ["key", "value"], rows: rows.map(([key, value]) => () => [textCell(key), textCell(value)]) } };
}

function pageOfRun({ run }) {
    return {
        heading: `Run ${run.data.run}`,
        about: `${plural(ranksOf(run.data), "rank")}, ${where(run.data.experiment)}`,
        answer: answerOfRun(run.data),
        sections: [
            failuresOfRun(run.data), throughputAgainstLimit(run.data), sharesOfStates(run.data), statesOfRanks(run.data, "save"), statesOfRanks(run.data, "load"),
            iterationsOfRun(run.data), latencyOfRequests(run.data), ratesOfNodes(run.data, "save"), ratesOfNodes(run.data, "load"), slowestRequests(run.data),
            metricsOfRun(run.data), settingsOfRun(run.data),
        ],
    };
}

const KINDS = { run: pageOfRun };
