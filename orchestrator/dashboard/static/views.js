// A view is kept as it is now: pages change their address while one looks at them.
"use strict";
document.addEventListener("submit", (event) => {
  if (event.target.matches("form[data-view]")) event.target.elements.query.value = location.search.slice(1);
});
