// Names for what the server answers with, as its OpenAPI declares it, and for what only the page has.
import type { components, paths } from "api";

type Of<Name extends keyof components["schemas"]> = components["schemas"][Name];
type Found<Method> = Method extends { responses: { 200: { content: { "application/json": infer T } } } } ? T : any;

/** An address of the server that knows what a GET of it answers. */
export type Address<P extends keyof paths> = string & { readonly path?: P };
export type Got<P extends keyof paths> = Found<paths[P]["get"]>;

/** What is no number in JSON is "NaN", "Infinity" or "-Infinity". */
export type Num = number | string | null;

export type Job = Of<"JobNode">;
export type HeldOut = Of<"HeldOutNode">;
export type Finding = Of<"Finding">;
export type Name = Of<"MetricName">;
export type Curve = Of<"CurvePoints">;
export type GroupRow = Of<"GroupSummary">;
export type Token = Of<"Token">;
export type Episode = Of<"EpisodeRecord">;
export type Turn = Of<"EpisodeTurn">;
export type Process = Of<"ProcessUsage">;
export type Row = Of<"MetricRow">;
export type Pair = Of<"PromptPair">;

export interface Problem { where: string; got: string; fix: string; code: string }

export interface Check { level: "OK" | "WARN" | "FAIL"; subject: string; message: string; fix: string }

export interface Plan {
  ok: boolean; results: Check[]; choices: Record<string, string>; folder: string | null; command?: string;
  differs: { name: string; value: unknown; default: unknown; origin: string }[];
  arithmetic: Record<string, number> | null;
  memory: { phases: { name: string; parts: Record<string, number>; total_bytes: number }[]; peak: string; limit_bytes: number | null } | null;
  rows: { text: string; loss: boolean }[][];
}

export interface Setting { name: string; type: string; default: unknown; choices?: string[] | null; help: string; group?: string; choice?: string }

export interface Schema { groups: { name: string; choices: { name: string; help: string }[] }[]; settings: Setting[] }

export interface Event { seq: number; attempt: number; kind: string; at: number; [field: string]: any }
