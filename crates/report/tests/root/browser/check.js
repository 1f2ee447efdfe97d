// Checks every text of the page and writes the problems into the page: first the
// window and its colour scheme, then the number of texts, then one line for each
// finding.
const found = [];
document.querySelectorAll('details').forEach(d => d.open = true);
const quoted = e => JSON.stringify(e.textContent.trim().slice(0, 40));
let texts = 0;

// Relative luminance and contrast of WCAG 2.
const channels = colour => (colour.match(/[\d.]+/g) || [0, 0, 0]).map(Number);
const luminance = colour => channels(colour).slice(0, 3)
    .map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const paper = luminance(getComputedStyle(document.body).backgroundColor);
const readable = (e, colour) => {
    const ink = luminance(colour);
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < 4.5) found.push(`contrast: ${contrast.toFixed(2)} ${quoted(e)}`);
};

for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    const labels = [...svg.querySelectorAll('text')].filter(e => e.textContent.trim());
    const boxes = labels.map(e => e.getBoundingClientRect());
    labels.forEach((e, i) => {
        texts++;
        const style = getComputedStyle(e);
        const size = parseFloat(style.fontSize) * e.getScreenCTM().a;
        if (size < 10) found.push(`small: ${size.toFixed(1)} px ${quoted(e)}`);
        readable(e, style.fill);
        const b = boxes[i];
        if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 1)
            found.push(`outside: ${quoted(e)} of ${quoted(svg)} ${Math.round(b.left)} ${Math.round(b.right)}`);
        for (let j = 0; j < i; j++) {
            const a = boxes[j];
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            // A box has its font's full ascent and descent; letters have less.
            const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (wide > 1 && high > 3) found.push(`overlap: ${quoted(labels[j])} ${quoted(e)}`);
        }
    });
}
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || e.closest('svg,script')) continue;
    texts++;
    const style = getComputedStyle(e);
    if (parseFloat(style.fontSize) < 10) found.push(`small: ${style.fontSize} ${quoted(e)}`);
    readable(e, style.color);
}
const over = document.documentElement.scrollWidth - innerWidth;
if (over > 0) {
    const widest = [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll'))[0];
    found.push(`wide: ${over} px past the window: ${widest ? widest.outerHTML.slice(0, 120) : ''}`.replace(/[<>]/g, '|'));
}
const report = document.createElement('pre');
// A frame's name is its number.
report.id = `findings-${window.name}`;
const scheme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
report.textContent = [`${innerWidth} ${scheme}`, texts, ...new Set(found)].join('\n');
parent.document.body.append(report);
