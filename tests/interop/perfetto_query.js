// Perfetto's own reader of traces, the engine of its web page, asked without a browser.
// usage: node perfetto_query.js FOLDER_OF_THE_PAGE TRACE SQL...     prints a JSON list of rows for each query
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');
const own = process;
const [folder, trace, ...queries] = own.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3;  // methods of its remote procedure calls
const NULL = 1, INTEGER = 2, FLOAT = 3;     // kinds of cells

// What is needed of protocol buffers.
function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push(value % 128 + 128);
  return Buffer.from([...bytes, value]);
}

const integer = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const block = (field, value) => Buffer.concat([varint(field * 8 + 2), varint(value.length), value]);

// The value and where it ends; undefined where the bytes end first.
function takeVarint(bytes, at) {
  for (let value = 0n, shift = 0n; at < bytes.length; shift += 7n) {
    const byte = bytes[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [Number(BigInt.asIntN(64, value)), at];
  }
  return undefined;
}

// [field, number or bytes, where it ends] of each field that is there as a whole.
function* fields(bytes) {
  for (let at = 0; ;) {
    const tag = takeVarint(bytes, at);
    const first = tag && (tag[0] % 8 === 1 ? [8, tag[1]] : takeVarint(bytes, tag[1]));
    if (!first) return;
    const sized = tag[0] % 8 !== 0;
    const end = sized ? first[1] + first[0] : first[1];
    if (end > bytes.length) return;
    yield [Math.floor(tag[0] / 8), sized ? bytes.subarray(first[1], end) : first[0], end];
    at = end;
  }
}

function* varints(bytes) {
  for (let taken = takeVarint(bytes, 0); taken; taken = takeVarint(bytes, taken[1])) yield taken[0];
}

// Rows of one answer's part are added to `result`: {names, cells, last}.
function addCells(result, batch) {
  let kinds = [], integers = [], floats = [], texts = [];
  for (const [field, value] of fields(batch)) {
    if (field === 1) kinds = [...varints(value)];
    else if (field === 2) integers = [...varints(value)];
    else if (field === 3) for (let at = 0; at < value.length; at += 8) floats.push(Buffer.from(value).readDoubleLE(at));
    else if (field === 5) texts = Buffer.from(value).toString().split('\0');
    else if (field === 6) result.last = true;
  }
  for (const kind of kinds)
    result.cells.push(kind === NULL ? null : kind === INTEGER ? integers.shift() : kind === FLOAT ? floats.shift() : texts.shift());
}

function addAnswer(result, answer) {
  for (const [field, value] of fields(answer)) {
    if (field === 1) result.names.push(Buffer.from(value).toString());
    else if (field === 2 && value.length) throw new Error(Buffer.from(value).toString());
    else if (field === 3) addCells(result, value);
  }
}

function rowsOf({names, cells}) {
  const rows = [];
  for (let at = 0; at < cells.length; at += names.length)
    rows.push(Object.fromEntries(names.map((name, column) => [name, cells[at + column]])));
  return rows;
}

// What the page's worker finds around it: no node, and files that are asked for at once.
class XMLHttpRequest {
  open(method, name) { this.name = path.basename(name); }
  send() { this.response = Uint8Array.from(fs.readFileSync(path.join(folder, this.name))).buffer; }
}

function loadEngine() {
  Object.assign(globalThis, {self: globalThis, XMLHttpRequest, WorkerGlobalScope: Object, location: {href: 'http://page/engine_bundle.js'}});
  globalThis.process = undefined;
  console.log = console.info = console.error;  // standard output is for the rows
  vm.runInThisContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), {filename: 'engine_bundle.js'});
}

async function main() {
  loadEngine();
  let received = Buffer.alloc(0), sequence = 0, hear;
  const port = {
    postMessage(data) {
      received = Buffer.concat([received, data]);
      let end = 0;
      for (const [, message, after] of fields(received)) {
        end = after;
        hear(message);
      }
      received = received.subarray(end);
    },
  };
  self.onmessage({data: port});
  await new Promise(setImmediate);
  // One request; `take` sees each of its answers and says which is the last.
  const ask = (method, argument, take) => new Promise((resolve, reject) => {
    hear = (message) => {
      try {
        const answer = Object.fromEntries([...fields(message)].map(([field, value]) => [field, value]));
        if (answer[5]) throw new Error(Buffer.from(answer[5]).toString());
        if (take(answer)) resolve();
      } catch (error) {
        reject(error);
      }
    };
    const body = Buffer.concat([integer(1, sequence++), integer(2, method), argument]);
    port.onmessage({data: new Uint8Array(block(1, body))});
  });
  await ask(APPEND, block(101, fs.readFileSync(trace)), (answer) => {
    for (const [field, value] of fields(answer[201] || Buffer.alloc(0)))
      if (field === 2 && value.length) throw new Error(Buffer.from(value).toString());
    return true;
  });
  await ask(FINALIZE, Buffer.alloc(0), () => true);
  const tables = [];
  for (const sql of queries) {
    const result = {names: [], cells: [], last: false};
    await ask(QUERY, block(103, block(1, Buffer.from(sql))), (answer) => {
      addAnswer(result, answer[203]);
      return result.last;
    });
    tables.push(rowsOf(result));
  }
  fs.writeSync(1, JSON.stringify(tables) + '\n');
  own.exit(0);
}

main().catch((error) => {
  fs.writeSync(2, `${error.message}\n`);
  own.exit(1);
});
