// Figures as ckptbench prints them: "0.80 s", "2.03 GiB/s", "1.62 GiB". The blank does not break, so a unit stays with its number.
"use strict";

const BLANK = "\u00a0";

function digits(value) {
    if (value === null || value === undefined) return "-";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(2);
    if (size >= 100) return Math.round(value).toLocaleString("en");
    return value.toFixed(size >= 10 ? 1 : size >= 1 || size === 0 ? 2 : size >= 0.01 ? 3 : 4);
}

function seconds(value) {
    const size = Math.abs(value);
    if (size >= 3600) return `${Math.floor(value / 3600)}h${String(Math.floor((value % 3600) / 60)).padStart(2, "0")}`;
    if (size >= 60) return `${Math.floor(value / 60)}m${String(Math.floor(value % 60)).padStart(2, "0")}s`;
    if (size === 0) return `0${BLANK}s`;
    const [factor, unit] = size >= 0.1 ? [1, "s"] : size >= 1e-3 ? [1e3, "ms"] : size >= 1e-6 ? [1e6, "us"] : [1e9, "ns"];
    const scaled = value * factor;
    return `${unit === "s" || Math.abs(scaled) < 10 ? scaled.toFixed(2) : scaled.toFixed(Math.abs(scaled) < 100 ? 1 : 0)}${BLANK}${unit}`;
}

function bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let step = 0;
    for (; Math.abs(value) >= 1000 && step < units.length - 1; step++) value /= 1024;
    return `${step === 0 ? Math.round(value) : Number(value.toPrecision(3))}${BLANK}${units[step]}`;
}

function percent(value) {
    return `${(100 * value).toFixed(Math.abs(value) < 0.0995 ? 1 : 0)}${BLANK}%`;
}

function change(value) {
    return `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}${BLANK}%`;
}

// A value in the unit that a metric has in the documents; "-" where there is none.
function figure(value, unit) {
    if (value === null || value === undefined) return "-";
    if (unit === "s") return seconds(value);
    if (unit === "bytes") return bytes(value);
    if (unit === "bytes/s") return `${bytes(value)}/s`;
    if (unit === "count") return value.toLocaleString("en");
    if (unit === "ratio" || !unit) return digits(value);
    return `${digits(value)}${BLANK}${unit}`;
}

function plural(count, noun) {
    return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}
