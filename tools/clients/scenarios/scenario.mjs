// What the scenarios of all Node clients share, as `scenario.py` has it for Python.
export const URL = process.env.WEFT_URL;
export const MODEL = "weft-agent";
export const PLAIN = "Kosan lives in Tane. Where does Kosan live?";
export const PLAIN_ANSWER = "Kosan lives in Tane.";
export const QUESTION = "What is the weather in Lokel?";
export const ANSWER = "The weather in Lokel is rainy.";

export function same(found, wanted) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (a !== b) throw new Error(`got ${a}, not ${b}`);
}

export async function run(scenario, body) {
  const line = { scenario };
  try {
    Object.assign(line, { passed: true, excerpt: String(await body()).slice(0, 300) });
  } catch (error) {
    console.error(error);
    Object.assign(line, { passed: false, excerpt: `${error.name}: ${error.message}`.slice(0, 600) });
  }
  console.log(JSON.stringify(line));
}
