// What each kind of page shows: a heading, the answer in words, and the sections in their order.
"use strict";

// A sentence with its figures in words. {class, text} marks one.
function says(text, kind) {
    return element("p", { class: kind ? `answer ${kind}` : "answer" }, text);
}

function ranksOf(run) {
    const of = Object.values(run.ranks || {})[0] || [];
    return of.length || run.experiment.ranks || 0;
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
    const stall = run.metrics.stall_s, behind = run.metrics[`${operation}.persist_s`];
    if (stall && behind) text += ` Training waits for ${seconds(stall.median)} of it; the rest goes on behind it, ${seconds(behind.median)} long.`;
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
    return [...sentences, ...run.doubts.map((text) => says(`Doubt: ${text}.`))];
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

// Of a training the steps, before its saves.
function answerOfTraining(run) {
    const step = run.metrics.step_s;
    if (!step) return [];
    const median = (name) => (run.metrics[name] || {}).median;
    const losses = valuesOfSteps(run, "loss");
    let text = `A step takes ${seconds(step.median)} (${seconds(step.min)} to ${seconds(step.max)} in ${plural(step.n, "step")})`;
    if (median("tokens_per_s") !== undefined) text += `: ${digits(median("tokens_per_s"))} tokens/s`;
    if (median("step.mfu") !== undefined) text += `, ${percent(median("step.mfu"))} of what matrix products alone reach here`;
    const sentences = [says(`${text}.`)];
    if (losses.length > 1) sentences.push(says(`The loss went from ${digits(losses[0][1])} at step ${losses[0][0]} to ${digits(losses[losses.length - 1][1])} at step ${losses[losses.length - 1][0]}.`));
    if (median("train_goodput") !== undefined) sentences.push(says(`Goodput: ${percent(median("train_goodput"))} of the time went into steps at their own pace.`));
    return sentences;
}

function answerOfSuite(run) {
    if (run.experiment.workload !== "suite") return [];
    const outliers = outliersOfSuite(run);
    if (outliers.length) return outliers.map((text) => says(text, "bad"));
    const count = run.nodes.names.length;
    return [says(count >= FEWEST ? `None of ${plural(count, "node")} is an outlier.` : `Measured on ${plural(Math.max(count, 1), "node")}, too few to call one an outlier.`)];
}

// What the hooks of `watch` saw of a training.
function answerOfWatched({ watched, metrics, advice = [] }) {
    if (!watched) return [];
    const [alone, behind] = ["step_alone_s", "step_behind_s"].map((name) => metrics[name]?.median);
    const sentences = [];
    if (alone !== undefined) sentences.push(says(`A step of the training takes ${seconds(alone)} without a save${behind === undefined ? "" : ` and ${seconds(behind)} while one goes on behind it`}.`));
    sentences.push(...watched.warnings.map((text) => says(`Warning: ${text}`, "bad")));
    if (watched.unseen.length) sentences.push(says(`Not seen: ${watched.unseen.join("; ")}.`));
    if (watched.limit) sentences.push(says(`The device's limit was ${watched.limit}.`));
    if (watched.left_out) sentences.push(says(`Left out: ${watched.left_out}.`));
    if (advice.length) sentences.push(says(`To change first: ${advice[0].text}.`));
    return sentences;
}

function adviceOfWatched({ advice = [] }) {
    if (!advice.length) return null;
    return {
        title: "What could be changed", document: "run", wide: true, note: "What each could gain at most, of a save or a step, and the command that proves it.",
        table: { isOpen: true, columns: ["#at most", "what", "to prove it"], rows: advice.map((each) => () => [cell(each.seconds, "s"), textCell(each.text), textCell(each.command)]) },
    };
}

function aboutRun({ experiment, watched, ...run }) {
    if (watched) return [`${watched.command || "A command"} watched`, watched.seen, watched.place && `saved in ${watched.place}`].filter(Boolean).join(", ");
    return [experiment.workload, plural(ranksOf({ experiment, ...run }), "rank"), experiment.workload === "suite" ? "" : experiment.model, experiment.store].filter(Boolean).join(", ");
}

// A run has the sections that its documents have figures for, whatever its workload.
function pageOfRun({ run: { data: run } }) {
    return {
        heading: `Run ${run.run}`,
        about: aboutRun(run),
        answer: [...answerOfSuite(run), ...answerOfTraining(run), ...answerOfRun(run), ...answerOfWatched(run)],
        sections: [
            failuresOfRun(run), adviceOfWatched(run), lossOfTraining(run), tokensOfTraining(run), stepsAndSaves(run),
            nodesOfSuite(run, "nodes"), nodesOfSuite(run, "gpus"), ...Object.keys(PAIRS).map((member) => pairsOfSuite(run, member)), ...curvesOfSuite(run), figuresOfSuite(run),
            throughputOverTime(run), throughputAgainstLimit(run), sharesOfStates(run), statesOfRanks(run, "save"), statesOfRanks(run, "load"),
            ...heatOfOperations(run), ...countersOfHosts(run),
            iterationsOfRun(run), latencyOfRequests(run), ratesOfNodes(run, "save"), ratesOfNodes(run, "load"), slowestRequests(run),
            metricsOfRun(run), settingsOfRun(run),
        ],
    };
}

// What compare says of one side against the base, a sentence for each verdict.
function answerOfComparison(other, base) {
    const of = (verdict) => Object.entries(other.metrics).filter(([, metric]) => metric.primary && metric.verdict === verdict);
    const list = (metrics) => metrics.map(([name, metric]) => `${name} ${metric.change === null ? "" : change(metric.change)}`).join(", ");
    const against = `${other.name} against ${base.name}`;
    const [better, worse, same, open] = ["better", "worse", "same", "inconclusive"].map(of);
    const sentences = [];
    if (better.length) sentences.push(says(`${against} is better: ${list(better)}.`, "good"));
    if (worse.length) sentences.push(says(`${against} is worse: ${list(worse)}.`, "bad"));
    if (same.length) sentences.push(says(`${against} is the same: ${list(same)}.`));
    if (open.length) {
        const more = Math.max(...open.map(([, metric]) => metric.more_runs || 0));
        sentences.push(says(`${against}: these runs do not tell whether anything changed in ${list(open)}${more ? `; about ${plural(more, "more run")} a side would` : ""}.`));
    }
    const [differs, confounded] = [other.differs, other.confounded].map((keys) => Object.entries(keys).map(([key, { base: from, other: to }]) => `${key} ${from} to ${to}`).join(", "));
    if (differs) sentences.push(says(`What differs: ${differs}.`));
    if (confounded) sentences.push(says(`Also different, so that what changed may be due to it: ${confounded}.`, "bad"));
    return [...sentences, ...changesOfSide(other).map((point) => changeSentence(point, point.run, other.name))];
}

// The change points at which the levels of a side began, which compare names of LATEST.
function changesOfSide(other) {
    return Object.entries(other.change_points).map(([metric, point]) => ({ ...point, metric, unit: other.metrics[metric].unit }));
}

const METHODS = {
    runs: "Runs are the sample.", blocks: "Tested within blocks, which takes out what changed over time.",
    "within-run": "Iterations of one run a side: repeat the run to tell.", prediction: "One run, tested against the spread of the base.",
};

function pageOfComparison({ comparison }) {
    const { base, others } = comparison.data;
    const of = (section) => section && { document: "comparison", ...section };
    return {
        heading: `${others.map((other) => other.name).join(", ")} against ${base.name}`,
        about: [...new Set(others.map((other) => METHODS[other.method]))].join(" ") + ` ${[base, ...others].map((side) => `${side.name}: ${plural(side.n, "run")}`).join(", ")}.`,
        answer: others.length ? others.flatMap((other) => answerOfComparison(other, base)) : [says("There is nothing to compare with yet.")],
        sections: [
            of(forestOfChanges(others, base, "What changed")),
            ...others.flatMap((other) => [
                ...pairedOfPrimaries(other, base),
                tableOfChanges(`Where the levels of ${other.name} began`, changesOfSide(other), "comparison")].map(of)),
            ...scalingOfSizes(comparison.data, "comparison"),
        ],
    };
}

// What `compare` says of the best combination against the next ones.
function judgeBest(name, best) {
    const { base, others } = best, nameOfSide = ({ name: side }) => side.replace(/^sweep=\S+ /, "");
    if (others.some((other) => other.method === "within-run")) return [says("One run of a combination tells no effect from chance: repeat the sweep.")];
    const of = (...verdicts) => others.filter((other) => other.metrics[name] && verdicts.includes(other.metrics[name].verdict));
    const [behind, same, open] = [of("worse"), of("same"), of("inconclusive", "better")];
    const more = Math.max(0, ...open.map((other) => other.metrics[name].more_runs || 0));
    const sentences = [];
    if (behind.length) sentences.push(says(`${nameOfSide(base)} is better than ${behind.map(nameOfSide).join(", ")}.`, "good"));
    if (same.length) sentences.push(says(`As good as it: ${same.map(nameOfSide).join(", ")}.`));
    if (open.length) sentences.push(says(`Whether it is better than ${open.map(nameOfSide).join(" or ")} cannot be told${more ? `; about ${plural(more, "more run")} a side would tell` : ""}.`));
    return sentences;
}

function answerOfSweep(sweep, best) {
    const name = sweep.best_first_by;
    const runs = sweep.combinations.flatMap((combination) => combination.runs);
    const failed = runs.filter((run) => run.outcome !== null && run.outcome !== "pass");
    const open = runs.filter((run) => run.outcome === null);
    const of = (combination) => combination.metrics[name];
    const named = (combination) => sweep.varied.map((key) => `${key}=${combination.values[key]}`).join(" ");
    const known = sweep.combinations.filter((combination) => name && of(combination));
    const sentences = [];
    if (known.length) {
        const [first, ...rest] = known, last = rest[rest.length - 1];
        let text = `Best by ${name} is ${named(first)} with ${figure(of(first).median, of(first).unit)}`;
        if (last) text += `; last is ${named(last)} with ${figure(of(last).median, of(last).unit)}`;
        sentences.push(says(`${text}.`), ...(best ? judgeBest(name, best.data) : []));
    }
    if (failed.length) sentences.push(says(`${plural(failed.length, "run")} did not pass: ${failed.map((run) => `${run.run} (${run.outcome})`).join(", ")}.`, "bad"));
    if (open.length) sentences.push(says(`${plural(open.length, "run")} of ${runs.length} are not in yet.`));
    return sentences;
}

function pageOfSweep(documents) {
    const sweep = documents.sweep.data;
    const comparisons = Object.entries(documents).filter(([name]) => name.startsWith("by "));
    return {
        heading: `Sweep ${sweep.sweep}`,
        about: `${plural(sweep.combinations.flatMap((combination) => combination.runs).length, "run")} over ${sweep.varied.join(", ")}.`,
        answer: answerOfSweep(sweep, documents.best),
        sections: [
            ...curvesOfSweep(sweep), ...comparisons.flatMap(([name, { data }]) => scalingOfSizes(data, name)),
            ...comparisons.map(([name, { data: { base, others } }]) => {
                const section = forestOfChanges(others, base, `Changes against ${base.name}`);
                return section && { ...section, document: name };
            }),
            runsOfSweep(sweep),
        ],
    };
}

const KINDS = { run: pageOfRun, comparison: pageOfComparison, sweep: pageOfSweep };
