// Parts of the page. Text of the data becomes text nodes alone, so a name in it is never markup.
"use strict";

const ROWS_SHOWN = 12; // a longer table is folded until asked for
const ROWS_PRINTED = 100;

function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {}))
        if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
        else if (value !== null && value !== undefined) made.setAttribute(name, value);
    made.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return made;
}

// A cell with the exact value of the document beside the text that people read.
function cell(value, unit) {
    return element("td", { class: "figure", "data-value": value === null || value === undefined ? null : JSON.stringify(value) }, figure(value, unit));
}

function textCell(text) {
    const said = text === null || text === undefined ? "-" : String(text);
    return element("td", { class: said.length > 48 ? "text long" : "text" }, said);
}

// A figure that is no number of a document; the table is sorted by `value`.
function derivedCell(value, text) {
    return element("td", { class: "figure", "data-order": JSON.stringify(value ?? null) }, text);
}

// Puts the rows of a table in the order of a column; in the opposite order the second time. Cells without a value come last.
function sortRows({ target }) {
    const heading = target.closest("th"), body = heading.closest("table").tBodies[0], { cellIndex } = heading;
    const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const valueOf = ({ dataset: { value, order = value }, className, textContent }) => (order !== undefined ? JSON.parse(order) : className === "figure" ? null : textContent);
    const compare = (a, b) => (a === null || b === null ? (a === null) - (b === null) : sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
    const rows = [...body.rows].map((row) => ({ row, value: valueOf(row.cells[cellIndex]) }));
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    body.append(...rows.sort((a, b) => compare(a.value, b.value)).map(({ row }) => row));
}

// columns: [heading, …], "#" before one of figures. rows: arrays of cells, made when the table is first seen.
function table(caption, columns, rows, isOpen) {
    const place = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption });
    const folded = element("details", { "data-rows": rows.length, class: rows.length <= ROWS_SHOWN ? "short" : null }, element("summary", {}, rows.length > 1 ? `Figures (${plural(rows.length, "row")})` : "Figures"), place);
    const fill = () => {
        if (place.firstChild || !folded.open) return;
        const head = columns.map((name) => element("th", { scope: "col", class: name.startsWith("#") ? "figure" : null },
            element("button", { type: "button", class: "sort", onclick: sortRows, title: "Sort by this column" }, name.replace(/^#/, ""))));
        place.append(element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows.map((row) => element("tr", {}, row())))));
    };
    folded.addEventListener("toggle", fill);
    folded.open = isOpen || rows.length <= ROWS_SHOWN;
    fill();
    return folded;
}

// A button that puts a command line on the clipboard; `about` says more where a pointer rests.
function copyButton(command, label, about) {
    const copy = async (event) => {
        const button = event.target;
        try {
            await navigator.clipboard.writeText(command);
        } catch {
            const area = element("textarea", {}, command); // pages opened from a folder have no clipboard in some browsers
            document.body.append(area);
            area.select();
            document.execCommand("copy");
            area.remove();
        }
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = label), 1500);
    };
    return element("button", { type: "button", onclick: copy, title: about || command }, label);
}
