// Runs before the first paint, so that a dark page does not flash white at first.
try {
  const { theme } = JSON.parse(localStorage.getItem("anespec-settings") ?? "{}");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the page follows the system's setting.
}
