// What the page takes from others; `make web-vendor` bundles it into js/vendor.js.
export { h, render } from "preact";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, useComputed, useSignal } from "@preact/signals";
export { html } from "htm/preact";
export { default as uPlot } from "uplot";
