// Formats numbers and sentences for display.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 2, minimumFractionDigits: 2 });
const rough = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const numbers = {
  /** Two decimals below ten, one below a hundred. */
  figure: (value) => (value < 10 ? fine : value < 100 ? rough : whole).format(value),
  whole: (value) => whole.format(value),
  share: (part, all) => `${Math.round((100 * part) / all)} %`,
  counted: (count, what) => (Number.isFinite(count) ? `${whole.format(count)} ${what}${count === 1 ? "" : "s"}` : ""),
  seconds: (value) => (value < 60 ? `${Math.max(1, Math.round(value))} s` : `${Math.round(value / 60)} min`),
};

/** Return a message of the daemon as a sentence, with a capital and a full stop. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
