// Sets light or dark before anything is drawn. A classic script in the head, so that no page flashes.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("replaysvc.theme");
  } catch {
    // as the system has it
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
