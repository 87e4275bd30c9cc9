// A file that was dropped in, as text. It knows encodings, and says of files that are no text what they
// are and what to do with them.

import { bytes } from './dom.js';

/** Bytes of a file that the server would take, with room for what JSON makes of them. */
const MAX_FILE_BYTES = 12_000_000;

/** Files that are no text, by their first bytes: [bytes, what it is, what helps]. */
const KINDS = [
  ['%PDF-', 'a PDF', 'Save its text first: pdftotext file.pdf, or “Save as text” in your PDF viewer.'],
  ['PK\x03\x04', 'a ZIP archive or an Office document', 'Save it as plain text (.txt) or Markdown first.'],
  ['\xd0\xcf\x11\xe0', 'an old Office document', 'Save it as plain text (.txt) first.'],
  ['{\\rtf', 'a rich text document', 'Save it as plain text (.txt) first.'],
  ['\x89PNG', 'a picture', 'weft reads text only.'],
  ['\xff\xd8\xff', 'a picture', 'weft reads text only.'],
  ['GIF8', 'a picture', 'weft reads text only.'],
  ['\x1f\x8b', 'a compressed file', 'Unpack it first.'],
  ['ID3', 'a recording', 'weft reads text only.'],
];

/** The text of a file, and the encoding it was read in if that was not UTF-8. */
export async function readText(file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(`It has ${bytes(file.size)}, and at most ${bytes(MAX_FILE_BYTES)} can be sent. Cut it into parts.`);
  const data = new Uint8Array(await file.arrayBuffer());
  const begin = String.fromCharCode(...data.subarray(0, 8));
  const kind = KINDS.find(([mark]) => begin.startsWith(mark));
  if (kind) throw new Error(`It is ${kind[1]}, not text. ${kind[2]}`);
  const { text, encoding } = decode(data);
  if (text === null || text.includes('\0')) throw new Error('It is not text in an encoding that is known here. Save it as UTF-8 text.');
  if (!text.trim()) throw new Error('It is empty.');
  return { text, encoding };
}

function decode(data) {
  if (data[0] === 0xff && data[1] === 0xfe) return { text: read(data, 'utf-16le'), encoding: 'UTF-16' };
  if (data[0] === 0xfe && data[1] === 0xff) return { text: read(data, 'utf-16be'), encoding: 'UTF-16' };
  const text = read(data, 'utf-8');
  if (text !== null) return { text, encoding: null };
  // Bytes of 8 bits each, as files of older Windows programs have them. Text in a Western language is
  // mostly ASCII; what is not may be anything.
  const high = data.reduce((sum, byte) => sum + (byte >= 0x80 ? 1 : 0), 0);
  const control = data.some((byte) => byte < 0x20 && ![0x09, 0x0a, 0x0c, 0x0d].includes(byte));
  const isWestern = !control && high <= data.length * 0.3;
  return { text: isWestern ? read(data, 'windows-1252') : null, encoding: 'Windows-1252' };
}

function read(data, encoding) {
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(data);
  } catch {
    return null;
  }
}
