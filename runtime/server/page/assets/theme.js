// Runs before the first paint, so that a dark page does not begin with a flash of light.
try {
  const { theme } = JSON.parse(localStorage.getItem("anespec-settings") ?? "{}");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the page follows the system's setting.
}
