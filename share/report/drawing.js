// Draws charts with ECharts, again when the colours or the width change.
"use strict";

// Colours that people with colour blindness tell apart (Okabe and Ito), on light and on dark ground.
const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c99", "#8c8c00"];
const DARK_HUES = ["#4aa8e0", "#ff8a4c", "#2cc79c", "#e0a0c4", "#f2b632", "#8ccff5", "#b79ad6", "#c9c94a"];
const drawn = [];
let printing = false;

function colours() {
    const style = getComputedStyle(document.documentElement);
    const isDark = !printing && matchMedia("(prefers-color-scheme: dark)").matches;
    const of = (name, onPaper) => (printing ? onPaper : style.getPropertyValue(name).trim());
    return {
        text: of("--text", "#000000"), quiet: of("--quiet", "#444444"), line: of("--line", "#bbbbbb"),
        ground: of("--panel", "#ffffff"), good: of("--good", "#1a7f37"), bad: of("--bad", "#b3261e"),
        hues: isDark ? DARK_HUES : HUES, grey: isDark ? "#5b6672" : "#c3c9d0", isDark,
    };
}

// A day alone could be of any month.
const TIME_LABELS = { year: "{yyyy}", month: "{MMM} {yyyy}", day: "{d} {MMM}", hour: "{HH}:{mm}", minute: "{HH}:{mm}", second: "{HH}:{mm}:{ss}" };

// An axis in the colours of the page; `more` are ECharts' options.
function axis(palette, more) {
    const quiet = { color: palette.quiet, fontSize: 12, hideOverlap: true, ...(more.type === "time" ? { formatter: TIME_LABELS } : {}) };
    return {
        nameLocation: "middle", nameTextStyle: { color: palette.quiet }, axisLine: { lineStyle: { color: palette.line } },
        axisTick: { lineStyle: { color: palette.line } }, splitLine: { lineStyle: { color: palette.line, opacity: 0.5 } },
        ...more, axisLabel: { ...quiet, ...more.axisLabel },
    };
}

// An axis of bytes or bytes a second from 0 to `most`, with ticks at round numbers of a unit.
function bytesAxis(palette, most, unit, more) {
    const scale = 1024 ** Math.floor(Math.log(Math.max(most, 1)) / Math.log(1024));
    const round = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 128, 256].find((step) => most / scale / step <= 4) || 512;
    const interval = round * scale;
    return axis(palette, { type: "value", min: 0, max: Math.ceil(most / interval) * interval || 1, interval, ...more, axisLabel: { formatter: (value) => figure(value, unit) } });
}

const LEGEND_LINE = 22;

// How many lines the names of the series take above the chart.
function legendLines(option, width) {
    if (option.legend === false) return 0;
    let lines = 1, used = 0;
    for (const name of new Set(option.series.map((series) => series.name))) {
        const needed = 34 + 7 * name.length;
        if (used && used + needed > width) [lines, used] = [lines + 1, 0];
        used += needed;
    }
    return lines;
}

// What every chart has; `option` says the rest.
function frame(palette, option, lines) {
    return {
        animation: false, textStyle: { fontFamily: "system-ui, 'DejaVu Sans', sans-serif", color: palette.text },
        color: palette.hues, aria: { enabled: false },
        ...option,
        grid: { left: 8, right: 18, top: 12 + LEGEND_LINE * lines, bottom: 8, containLabel: true, ...option.grid },
        legend: lines ? { top: 0, left: 0, textStyle: { color: palette.text }, inactiveColor: palette.quiet, itemWidth: 14, itemGap: 10, padding: [2, 0], ...option.legend } : undefined,
        tooltip: option.tooltip && { confine: true, backgroundColor: palette.ground, borderColor: palette.line, textStyle: { color: palette.text }, ...option.tooltip },
    };
}

// The lines of a tooltip: [[name, text], …].
function tip(title, lines) {
    return element("div", { class: "tip" }, element("strong", {}, title), lines.map(([name, text]) => element("div", {}, name ? `${name}: ${text}` : text)));
}

// Wheel with Ctrl zooms, dragging moves: the wheel alone scrolls the page.
function zoomable(count, which, most) {
    return count > (most || 60) ? [{ type: "inside", [which]: 0, zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false }] : undefined;
}

// A chart that arrow keys walk through: left and right by values, up and down by series. `said` repeats the tooltip for screen readers.
function walkWithKeys(place, said) {
    let line = 0, at = -1;
    place.addEventListener("keydown", (event) => {
        const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
        if (!step || !place.drawing) return;
        event.preventDefault();
        const series = place.drawing.getOption().series.map((each, index) => ({ index, count: each.silent ? 0 : each.data.length })).filter(({ count }) => count);
        if (!series.length) return;
        line = Math.min(Math.max(line + step[0], 0), series.length - 1);
        at = Math.min(Math.max(at + step[1], 0), series[line].count - 1);
        place.drawing.dispatchAction({ type: "showTip", seriesIndex: series[line].index, dataIndex: at });
        said.textContent = [...(place.querySelector(".tip")?.children || [])].map((part) => part.textContent).join(", ");
    });
    place.addEventListener("blur", () => place.drawing?.dispatchAction({ type: "hideTip" }));
}

// chart: {height, words, option(palette, width)}. `words` say for screen readers what the picture shows.
function draw(chart, title) {
    const description = element("p", { class: "unseen", id: `chart-${drawn.length}` }, `${chart.words}. Arrow keys show its values.`);
    const place = element("div", { class: "chart", role: "img", tabindex: "0", "aria-label": title, "aria-describedby": description.id });
    const said = element("p", { class: "unseen", "aria-live": "polite" });
    place.style.height = `${chart.height}px`;
    walkWithKeys(place, said);
    drawn.push({ place, chart });
    return [place, description, said];
}

function redraw() {
    const palette = colours();
    for (const { place, chart } of drawn) {
        const width = printing ? Math.min(place.clientWidth, 680) : place.clientWidth;
        const option = chart.option(palette, width);
        const lines = legendLines(option, width);
        const height = chart.height + LEGEND_LINE * Math.max(lines - 1, 0);
        place.style.height = `${height}px`;
        if (!place.drawing) place.drawing = echarts.init(place, null, { renderer: "svg", width, height });
        else place.drawing.resize({ width, height });
        place.drawing.setOption(frame(palette, option, lines), true);
    }
}

function watchForChanges() {
    let width = document.documentElement.clientWidth;
    new ResizeObserver(() => {
        if (printing || width === document.documentElement.clientWidth) return;
        width = document.documentElement.clientWidth;
        redraw();
    }).observe(document.documentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    const print = (isPrinting) => () => {
        printing = isPrinting;
        if (isPrinting) for (const folded of document.querySelectorAll("section:not(.wide) details")) {
            folded.open ||= folded.dataset.rows <= ROWS_PRINTED;
            folded.dispatchEvent(new Event("toggle")); // the browser's own comes after the page is on paper
        }
        redraw();
    };
    addEventListener("beforeprint", print(true));
    addEventListener("afterprint", print(false));
}
