/** What is typed after `rlrun train`: words as a shell takes them, and settings by name. */

/**
 * The words of a line; quotes hold spaces together.
 * @param {string} text
 */
export function words(text) {
  /** @type {string[]} */
  const found = [];
  for (const [, word] of text.replace(/\\\n/g, " ").matchAll(/((?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*')+)/g)) {
    found.push(word.replace(/"((?:\\.|[^"\\])*)"|'([^']*)'/g, (_, double, single) => (double === undefined ? single : double.replace(/\\(.)/g, "$1"))));
  }
  return found;
}

/** A word as a shell takes it. @param {string} word */
export const quoted = (word) => (/^[\w@%+=:,./~-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);

/** The name of an argument `name=value`. @param {string} word */
export const nameOf = (word) => word.replace(/^[+~]+/, "").split("=")[0];

/**
 * Arguments with another value of one of them; null takes it away. Others keep their places.
 * @param {string[]} all @param {string} name @param {string | null} value
 */
export function withValue(all, name, value) {
  const place = all.findIndex((each) => nameOf(each) === name);
  const rest = all.filter((each) => nameOf(each) !== name);
  if (value === null || value === "") return rest;
  return place < 0 ? [...rest, `${name}=${value}`] : [...rest.slice(0, place), `${name}=${value}`, ...rest.slice(place)];
}

/**
 * The argument that a remedy names, as [what it replaces, the argument]; null where it names none.
 * @param {string} subject of the problem @param {string} fix
 * @returns {[string, string] | null}
 */
export function remedy(subject, fix) {
  const whole = fix.match(/(?:^|use |mean |set |, |or )([\w@./+-]+=[^\s?;,]+)/);
  if (whole) return [subject, whole[1]];
  const value = fix.match(/^use ([\w.+-]+)$/);
  return value && /^[\w.@/]+$/.test(subject) && !/^(a|an|the|one)$/.test(value[1]) ? [subject, `${subject}=${value[1]}`] : null;
}
