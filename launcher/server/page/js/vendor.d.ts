// The types of what vendor.js bundles.
export { h, render, ComponentChildren } from "preact";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, useComputed, useSignal, Signal } from "@preact/signals";
export { html } from "htm/preact";
export { default as uPlot } from "uplot";
