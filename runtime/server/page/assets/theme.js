// Runs before anything is drawn, so that nobody who chose the dark sees a flash of light.
try {
  const { theme } = JSON.parse(localStorage.getItem("anespec-settings") ?? "{}");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Then it is as the system has it.
}
