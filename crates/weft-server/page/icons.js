// The page's icons: paths on a 16 × 16 field, drawn as lines. Each is beside a word, seen or spoken.

const PATHS = {
  plus: 'M8 3v10M3 8h10',
  close: 'M4 4l8 8M12 4l-8 8',
  send: 'M8 13V3M3.5 7.5 8 3l4.5 4.5',
  stop: 'M4.5 4.5h7v7h-7z',
  copy: 'M6 5.5h7v8H6zM10 5.5v-3H3v8h3',
  redo: 'M13 8a5 5 0 1 1-1.6-3.7M13 2.5V5.3h-2.8',
  edit: 'M3 13l.6-2.8 7.4-7.4 2.2 2.2-7.4 7.4zM9.6 4.2l2.2 2.2',
  keep: 'M4 2.5h8v11l-4-3-4 3z',
  pin: 'M6 2.5h4l-.6 4 2.1 2.5h-7l2.1-2.5zM8 9v4.5',
  trash: 'M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.6 9h5.8l.6-9',
  export: 'M8 10V2.5M5 5.3l3-2.8 3 2.8M3 10v3.5h10V10',
  settings: 'M2.5 5h6M12.5 5h1M2.5 11h1M7.5 11h6M10.5 3.2v3.6M5.5 9.2v3.6',
  theme: 'M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11',
  shelf: 'M3 2.5v11M6 2.5v11M9.2 3l3.6 10.2M3 13.5h3',
  left: 'M10 3.5 5.5 8l4.5 4.5',
  right: 'M6 3.5 10.5 8 6 12.5',
  down: 'M3.5 6 8 10.5 12.5 6',
  file: 'M4 2.5h5l3 3v8H4zM9 2.5v3h3',
  check: 'M3 8.5l3.2 3.2L13 4.8',
};

/** An icon. It is hidden from screen readers: the word beside it speaks. */
export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('aria-hidden', 'true');
  svg.setAttribute('class', 'icon');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  path.setAttribute('d', PATHS[name]);
  svg.append(path);
  return svg;
}

/** Puts icons where the markup asks for them. */
export function placeIcons(root) {
  for (const place of root.querySelectorAll('[data-icon]')) place.replaceWith(icon(place.dataset.icon));
}
