// Builds the page from its data.
"use strict";

function sectionOf(section, documents) {
    const { command } = documents[section.document];
    return element("section", { class: section.wide ? "wide" : null },
        element("h2", {}, section.title),
        section.note ? element("p", { class: "note" }, section.note) : null,
        section.chart ? draw(section.chart, section.title) : null,
        section.table ? table(section.title, section.table.columns, section.table.rows, section.table.isOpen) : null,
        command && element("p", { class: "note" }, copyButton(command, "Copy command", `${command} prints these figures`)));
}

function build(data) {
    const kind = KINDS[data.kind](data.documents, data.site);
    document.title = `${kind.heading} - ckptbench`;
    document.getElementById("heading").append(
        ...(data.site ? siteLinks(data) : []),
        element("h1", {}, kind.heading),
        element("p", { class: "about" }, kind.about),
        ...kind.answer,
        ...(!data.command ? [] : [element("div", { class: "copied" }, element("span", { class: "note" }, "This page again:"), element("code", {}, `${data.command} -o report.html`), copyButton(`${data.command} -o report.html`, "Copy command"))]));
    document.getElementById("page").append(...kind.sections.filter(Boolean).map((section) => sectionOf(section, data.documents)));
    document.getElementById("footer").append(element("p", {}, `Made by ckptbench ${data.version} on ${data.made.replace("T", " ").replace("Z", " UTC")}.`));
    redraw();
    watchForChanges();
}

build(JSON.parse(document.getElementById("data").textContent));
