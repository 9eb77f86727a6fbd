// Renders the formulas that docs/hooks/formulas.py writes: <div class="tex"> as a line of its own, <span class="tex"> in text.
for (const element of document.querySelectorAll(".tex"))
  katex.render(element.textContent, element, { displayMode: element.tagName === "DIV", throwOnError: false })
