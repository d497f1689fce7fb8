/** Generated from hookcore/reading/answers by `make format`: the answers of REST, and the messages of the socket. */

export type Accepted = { run: string; number: number; look: string; outcome: string };
export type Acknowledged = { run: string; key: string; acknowledged: boolean };
export type Annotation = { step: number; text: string };
export type Annotations = { run: string; annotations: Array<Annotation> };
export type Apart = { outcome: "NaN in both" | "different" | "no difference" | "not compared"; points: number; steps: number; parts_at: number | null; parts_by: number | null; largest: Number; share: Number; at_step: number | null; nonfinite: number; nonfinite_at: number | null; nonfinite_by: number | null };
export type Around = { name: string; steps: Array<number>; values: Array<Number> };
export type BlockCast = { block: number; underflow: Number; saturated: Number; noise: Number; most_noise: Number };
export type BlockCasts = { run: string; number: number; slice: string; values: number; of: number; formats: Record<string, BlockCast> };
export type Board = { charts: Array<PinnedChart> };
export type Capsule = { id: string; step: number; reason: string; model: string; weights: string; time_s: Number; size: number; path: string; state: "explained" | "failed" | "running" | "saved"; failure: string; explanation: Explanation | null; incident: string };
export type Capsules = { run: string; total: number; capsules: Array<Capsule> };
export type CastTo = { underflow: [Number, Number, Number]; subnormal: [Number, Number, Number]; saturated: [Number, Number, Number]; error: Number; noise: Number; most_noise: Number; limits: [Number, Number, Number]; fits: boolean; most: Number };
export type ChannelTaps = { run: string; taps: Array<Tap> };
export type Channels = { run: string; tap: Tap; first_step: Array<number>; last_step: Array<number>; channel: Array<number>; channels: number; values: Array<Array<Number>> };
export type Cka = { runs: [string, string]; steps: [number, number]; batch: string; samples: number; layers: [Array<string>, Array<string>]; values: Array<Array<Number>> };
export type Command = { number: number; name: string; changes: Record<string, unknown> };
export type ComparedLayer = { outcome: "NaN in both" | "different" | "no difference" | "not compared"; points: number; steps: number; parts_at: number | null; parts_by: number | null; largest: Number; share: Number; at_step: number | null; nonfinite: number; nonfinite_at: number | null; nonfinite_by: number | null; tap: Tap; numbers: [number, number]; first_step: Array<number>; last_step: Array<number>; difference: Array<Number> };
export type ComparedScalar = { outcome: "NaN in both" | "different" | "no difference" | "not compared"; points: number; steps: number; parts_at: number | null; parts_by: number | null; largest: Number; share: Number; at_step: number | null; nonfinite: number; nonfinite_at: number | null; nonfinite_by: number | null; name: string };
export type Comparison = { total: number; next: number | null; runs: [string, string]; kind: string | null; stat: string; tolerance: number; verdict: Verdict; first: Parting | null; parted: number; layers: Array<ComparedLayer>; logged: Array<ComparedScalar>; only_in: Record<string, Array<Tap>> };
export type ComparisonHeatmap = { runs: [string, string]; kind: string | null; stat: string; rows: Array<DifferenceRow>; first_step: Array<number>; last_step: Array<number>; worst: Array<Array<Number>>; state: Array<Array<number>> };
export type Course = { word: "broken" | "diverging" | "flat" | "learning" | "plateau" | "unknown"; sentence: string; loss: string; first: Number; newest: Number; lowest: Number; since_step: number | null };
export type Coverage = { path: string; type: string; captured: boolean; kinds: Array<"exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update">; reason: string };
export type CoverageList = { total: number; next: number | null; run: string; coverage: Array<Coverage> };
export type DeliveryCounters = { produced: number; acknowledged: number; dropped: Record<string, number>; waiting: number; in_flight: number };
export type DifferenceRow = { number: number | null; module: string; kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update"; index: string; call: number; phase: "eval" | "train"; label: string; group: number; numbers: [number, number] };
export type Differences = { inside: StepSample; outside: StepSample; compared: number; not_compared: number; layers: Array<DifferentLayer>; logged: Array<DifferentScalar> };
export type DifferentLayer = { tap: Tap; share: Number; usual: Number | null; message: string; edges: Array<Number>; inside: Array<Number>; outside: Array<Number>; values: [number, number]; nonfinite: [number, number] };
export type DifferentScalar = { name: string; share: Number; message: string; mean: [Number, Number]; low: [Number, Number]; high: [Number, Number] };
export type ErrorMessage = { type: "error"; error: string };
export type Event = { step: number; time_s: Number; name: string; message: string; severity: "error" | "info" | "warning"; module: string; count: number; key: string; acknowledged: boolean; muted: boolean; about: Record<string, boolean | number | number | string | null> };
export type Events = { run: string; total: number; next: number; events: Array<Event> };
export type EventsMessage = { type: "events"; run: string; snapshot: boolean; count: number; events: Array<Event> };
export type Evidence = { taps: Array<Tap>; steps: Array<number>; stats: Record<string, Array<Array<Number>>>; scalars: Array<Around> };
export type Explanation = { sentence: string; culprit: Suspect | null; others: Array<Suspect>; bad_results: Array<string>; operators: number; exact: boolean; differences: Array<string>; error: string; above: number | null; layers: Array<ReplayedLayer>; shares: SampleShares | null };
export type Failure = { outcome: "crashed" | "stopped"; step: number; error: string; traceback: string; signal: string; module: string | null; file: string; line: number; code: string };
export type Figure = { data: Array<Record<string, unknown>>; layout: Record<string, unknown> };
export type Finding = { key: string; rule: string; severity: "error" | "info" | "warning"; acknowledged: boolean; muted: boolean; tap: Tap; type: string; stat: string; value: Number; usual: Number; since_step: number; until_step: number | null; message: string; spark: Array<Number>; downstream: number; last_step: number | null; earliest_step: number; culprit_known: boolean; incident: string };
export type Findings = { run: string; total: number; newest_step: number | null; scope: Scope; course: Course; findings: Array<Finding>; rules: Array<Rule> };
export type Flow = { run: string; step: number | null; steps: Array<number>; seconds: Number; calls: Array<FlowCall> };
export type FlowCall = { module: string; call: number; phase: "eval" | "train"; fed_by: Array<number>; returns: Array<number>; how: "graph" | "identity" | "order" };
export type Heatmap = { run: string; kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update"; stat: string; rows: Array<Row>; first_step: Array<number>; last_step: Array<number>; worst: Array<Array<Number>>; state: Array<Array<number>>; present?: Array<Array<number>> | null; nonfinite?: Array<Array<number>> | null };
export type Histograms = { tap: Tap; first_step: Array<number>; last_step: Array<number>; edges: Array<Number>; counts: Array<Array<number>>; nan: Array<number>; negative_infinity: Array<number>; positive_infinity: Array<number>; run?: string };
export type HistogramsList = { run: string; histograms: Array<Histograms> };
export type HookRecord = { scope: "module" | "optimizer" | "parameter" | "process" | "tensor" | "thread"; owner: string; point: string; function: string; where: string; ours: boolean; number: number; options: Array<string>; legacy: boolean; warning: string };
export type Hooks = { total: number; next: number | null; run: string; hooks: Array<HookRecord> };
export type Incident = { id: string; key: string; rule: string; severity: "error" | "info" | "warning"; acknowledged: boolean; muted: boolean; sentence: string; culprit: Link; culprit_known: boolean; source: "capture" | "check" | "replay"; where: string; headline: string; remedy: string; value: Number; usual: Number; first_step: number; earliest_step: number; last_step: number; recovered: number | null; found_step: number; steps: number; unseen: number; skipped: boolean; loss: string; chain: Array<Link>; taps: number; modules: number; has_evidence: boolean; evidence: Evidence | null };
export type Incidents = { run: string; total: number; dropped: number; dropped_alerts: number; incidents: Array<Incident> };
export type IncidentsMessage = { type: "incidents"; run: string; snapshot: boolean; incidents: Array<Incident> };
export type Latest = { run: string; stats: Array<string>; taps: Array<LatestTap>; total: number };
export type LatestTap = { number: number | null; module: string; kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update"; index: string; call: number; phase: "eval" | "train"; label: string; step: number; values: Array<Number>; first_step: number };
export type LayerSpread = { tap: Tap; low: Number; median: Number; high: Number; apart: Number; odd: number | null; odd_value: Number; finite: number; present: number };
export type LayerSpreads = { total: number; next: number | null; run: string; kind: string; stat: string; first_step: number | null; step: number | null; layers: Array<LayerSpread> };
export type Link = { number: number | null; module: string; kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update"; index: string; call: number; phase: "eval" | "train"; label: string; first_step: number };
export type LiveRow = { number: number | null; module: string; kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update"; index: string; call: number; phase: "eval" | "train"; label: string; group: number; type: string };
export type LoginLink = { url: string; expires_s: Number };
export type Media = { number: number; name: string; step: number; time_s: Number; type: string; nbytes: number; cut: boolean };
export type MediaList = { total: number; next: number | null; run: string; media: Array<Media> };
export type Model = { run: string; step: number | null; steps: Array<number>; why: string; parts: Array<number>; edges: Array<ModelEdge>; boxes: Array<ModelBox>; absent: Array<string> };
export type ModelBox = { number: number; kind: "call" | "module" | "repeat"; module: string; call: number; phase: "eval" | "train"; type: string; source: string; inside: number | null; parts: Array<number>; edges: Array<ModelEdge>; period: number; same: number; how: "graph" | "identity" | "order"; computes: boolean; made_by: string; parameters: number; trainable: number; inputs: Array<ModelTensor>; outputs: Array<ModelTensor>; memory: number | null; flops: number | null; flops_unknown: string };
export type ModelEdge = { source: number | null; target: number | null; carries: Array<number>; guessed: boolean };
export type ModelTensor = { place: string; dtype: string; shape: Array<number> };
export type Module = { path: string; parent: string | null; type: string; parameters: number; trainable: number; aliases: Array<string>; shapes: Record<string, Array<number>>; source: string; coverage: Coverage | null; taps: Array<ModuleTap>; placements: Record<string, string> };
export type ModuleTap = { number: number | null; module: string; kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update"; index: string; call: number; phase: "eval" | "train"; label: string; values: Number | null; shape: Array<number> | null };
export type Modules = { total: number; next: number | null; run: string; modules: Array<Module> };
export type Mute = { rule: string; match: string; findings: number; incidents: number; events: number };
export type Mutes = { run: string; mutes: Array<Mute> };
export type Nearest = { run: string; step: number; first_step: number | null; last_step: number | null; before: number | null; after: number | null };
export type NotificationTarget = { name: string; sent: number; failed: number; works: boolean | null };
export type Notifications = { targets: Array<NotificationTarget>; waiting: number; dropped: number };
export type Number = number | "NaN" | "Infinity" | "-Infinity";
export type Outcome = { number: number; outcome: "applied" | "dropped" | "received" | "refused" | "superseded" | "unknown" | "waiting"; reason: string; step: number | null; module: string; replaced_by: number | null };
export type Outcomes = { run: string; outcomes: Array<Outcome> };
export type Overlay = { what: string; group_by: string; lines: Array<OverlayLine>; without: Array<string> };
export type OverlayLine = { run: string | null; name: string; group: string; source: string; first_step: Array<number>; last_step: Array<number>; mean: Array<Number>; min: Array<Number>; max: Array<Number>; nonfinite: Array<number>; runs: Array<number> };
export type Overview = { run: string; state: string; first_step: number | null; newest_step: number | null; steps: number; steps_per_s: Number | null; course: Course; loss: Reading | null; scalars: Array<Reading>; gradient_kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update" | null; gradient_norm: Reading | null; smallest_gradient: Reading | null; largest_gradient: Reading | null; nonfinite: number; nonfinite_modules: Array<string>; modules_captured: number; modules: number; taps: number; hook_cost: Number | null; every: number; budget: number | null; steps_left_out: number | null; cost: string; dropped: Record<string, number>; findings: Record<string, number>; muted: number; gradient_norm_before: Reading | null };
export type OwnRule = { name: string; where: string; off: string; calls: number; faults: number; mean_ms: Number; worst_ms: Number };
export type PartUsage = { nbytes: number; limit: number };
export type Parting = { step: number; tap: Tap };
export type PinnedChart = { name: string; path: string; query: string };
export type Precision = { run: string; first_step: number | null; last_step: number | null; format: string; scale: string; total: number; taps: Array<PrecisionTap> };
export type PrecisionTap = { number: number | null; module: string; kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update"; index: string; call: number; phase: "eval" | "train"; label: string; values: number; sampled: boolean; formats: Record<string, CastTo> };
export type Problem = { error: string };
export type Rank = { rank: number; run: string; state: "crashed" | "ended" | "live" | "lost" | "stopped" | "waiting"; host: string; device: string; local_rank: number; axes: Record<string, [number, number]>; newest_step: number | null; behind: number | null; seconds_per_step: Number; wait_s: Number; wait_share: Number; after_first_s: Number; was_last: number; late: number; missed: number; unknown_rows: number; samples_per_second: Number | null; tokens_per_second: Number | null };
export type RankMap = { run: string; tap: Tap | null; name: string; ranks: Array<number>; first_step: Array<number>; last_step: Array<number>; values: Array<Array<Number>>; newest: RankSpread | null };
export type RankSpread = { first_step: number; last_step: number; low: Number; median: Number; high: Number; odd: number | null; ranks: number };
export type RankSummary = { world: number; seen: number; live: number; missing: Array<number>; attempts: number };
export type RankWaits = { name: string; steps: number; first_step: number; last_step: number; seconds_per_step: Number; latest: number | null };
export type Ranks = { run: string; summary: RankSummary; steps: number; incomplete: number; partial: number; waiting: number; compared: number; unread: Array<number>; unlisted: number; waits: RankWaits | null; ranks: Array<Rank> };
export type Reading = { name: string; value: Number; step: number; tap: Tap | null; first_step: number };
export type RemovedRun = { id: string; name: string; removed_s: Number; why: "deleted" | "disk" | "memory"; restorable: boolean };
export type RemovedRuns = { total: number; runs: Array<RemovedRun> };
export type ReplayedLayer = { module: string; kind: "output" | "output_grad"; index: string; call: number; values: Array<number | null> };
export type RequestedMaps = { run: string; asked: Array<RequestedSnapshot>; left_out: number; look: string };
export type RequestedSnapshot = { number: number; tap: Tap };
export type ResumeCheck = { run: string; earlier: string; step: number | null; outcome: "broken" | "resumed" | "unknown"; message: string; parts: Array<ResumedPart> };
export type ResumedPart = { name: string; outcome: "differs" | "same" | "unknown"; message: string };
export type Rollout = { run: string; step: number | null; steps: Array<number>; sample: number; samples: number; fuse: string; discard: number; gradient: boolean; layers: Array<RolloutLayer>; tokens: Array<string>; label: string; matrix: Array<Array<Number>> };
export type RolloutLayer = { number: number; tap: Tap; heads: number; gradient: number | null };
export type Row = { number: number | null; module: string; kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update"; index: string; call: number; phase: "eval" | "train"; label: string; group: number };
export type RowsMessage = { type: "rows"; run: string; view: string; kind: string | null; stats: Array<string>; taps: number; rows: Array<LiveRow>; why?: string };
export type Rule = { name: string; severity: "error" | "info" | "warning"; title: string; help: string; limits: Record<string, number>; causes: Array<string>; tries: Array<string>; known_as: string };
export type Run = { id: string; name: string; notes: string; state: "crashed" | "ended" | "live" | "lost" | "stopped" | "waiting"; failure: Failure | null; partial: string; in_memory: boolean; folder: string; first_step: number | null; newest_step: number | null; steps: number; ended_at_step: number | null; taps: number; started_s: Number; ranks: RankSummary | null; rank: number | null; joint: string | null; host: string; pid: number | string; script: string; versions: Record<string, unknown>; settings: Record<string, unknown>; config: Record<string, boolean | number | number | string | null>; config_cut: number; facts: Record<string, boolean | number | number | string | null>; facts_cut: number; results: Record<string, Number>; tags: Array<string>; group: string; archived: boolean; labels: Record<string, string>; counters: DeliveryCounters; usage: Usage };
export type RunNews = { run: string; name: string; state: string; last_step: number | null; steps: number; taps: number; events: number; edits: number; paused: boolean; flow_step: number | null; snapshots: number; waiting: Array<number>; frames: number; time_s: Number | null };
export type RunRule = { name: string; title: string; severity: "error" | "info" | "warning"; known_as: string; on: boolean; may_be_off: boolean; thresholds: Array<Threshold>; looks_at: number | null; needs: string };
export type RunRules = { run: string; rules: Array<RunRule>; own: Array<OwnRule>; later: Record<string, Record<string, number> | boolean> };
export type Runs = { total: number; next: string | null; runs: Array<Run>; partial: string };
export type RunsMessage = { type: "runs"; runs: Array<RunNews> };
export type SampleBatch = { source: string; ids: Array<number | string>; rows: Array<number>; left_out: number; why: string | null; rank: number | null };
export type SampleShare = { ids: Array<number | string>; row: number; share: number };
export type SampleShares = { why: string | null; of: "gradient" | "loss"; loss: number | null; many: number; samples: Array<SampleShare>; stands_out: boolean; still_jumps: boolean; why_no_ids: string | null; loss_without: number | null; norm: number | null; norm_without: number | null; why_not_without: string | null };
export type Samples = { run: string; step: number; why: string | null; batches: Array<SampleBatch> };
export type Scalars = { total: number; next: number | null; run: string; names: Array<string>; series: Array<Series> };
export type ScalarsMessage = { type: "scalars"; run: string; snapshot: boolean; first_step: number; last_step: number; left_out: number; scalars: Array<Series> };
export type Scope = { verdict: "clear" | "problems" | "unknown"; sentence: string; first_step: number | null; last_step: number | null; steps: number; captured: number; captured_in_run: number; layers: number; uncaptured: number; problems: number; notes: number; evaluated: boolean; unjudged: Array<Unjudged> };
export type Series = { name: string; tap: Tap | null; first_step: Array<number>; last_step: Array<number>; mean: Array<Number>; min: Array<Number>; max: Array<Number>; present?: Array<number> | null; nonfinite?: Array<number> | null };
export type SeriesList = { total: number; next: number | null; run: string; stat: string; series: Array<Series> };
export type Settings = { run: string; state: string; settings: Record<string, unknown>; waiting: Array<Command> };
export type Snapshot = { number: number; asked: boolean; tap: Tap; step: number; time_s: Number; dtype: string; stored: string; shape: Array<number>; kept_shape: Array<number>; truncated: boolean; nbytes: number; named: boolean; run?: string | null; slice?: string | null; values?: unknown | null };
export type SnapshotNames = { run: string; number: number; axes: Array<number>; tokens: Array<Array<string>>; shared: boolean; labels: Array<string>; why: string; origin: string };
export type Snapshots = { total: number; next: number | null; run: string; snapshots: Array<Snapshot> };
export type SourceLine = { file: string; line: number; function: string; source: Array<string>; first: number };
export type StateMessage = { type: "state"; run: string; state: string; last_step: number | null };
export type Statistics = { run: string; number: number; slice: string; shape: Array<number>; statistics: Record<string, Number> };
export type StepSample = { run: string; first: number | null; last: number | null; steps: number };
export type Suspect = { origin: "constant" | "given" | "operator" | "uninitialized"; operator: string; number: number; phase: string; node: string; stack: Array<SourceLine>; inputs: Array<TensorFacts>; output: TensorFacts | null; elements: Array<Array<number>>; bad: number; module: string };
export type Tabular = {  };
export type Tap = { number: number | null; module: string; kind: "exp_avg" | "exp_avg_sq" | "input" | "input_grad" | "output" | "output_grad" | "param" | "param_grad" | "probe" | "raw_grad" | "state" | "update"; index: string; call: number; phase: "eval" | "train"; label: string };
export type Taps = { total: number; next: number | null; run: string; taps: Array<Tap> };
export type TensorFacts = { name: string; shape: Array<number>; strides: Array<number>; dtype: string; device: string; nan: number; inf: number; min: number | null; max: number | null; mean: number | null; values: Array<string> };
export type Threshold = { name: string; value: Number; default: Number; least: Number; most: Number; whole: boolean; help: string };
export type Tiles = { run: string; number: number; slice: string; pool: string; total: number; tile_shape: Array<number>; factors: Array<number>; values: unknown };
export type Timeline = { run: string; state: "crashed" | "ended" | "live" | "lost" | "stopped" | "waiting"; first_step: number | null; newest_step: number | null; quantity: string; is_loss: boolean; captured: number; captured_first: Array<number>; captured_last: Array<number>; captured_all: boolean; marks: Array<TimelineMark>; line?: Series | null };
export type TimelineMark = { step: number; first_step: number; last_step: number; severity: "error" | "info" | "warning"; title: string; module: string; count: number; incident: string; event: string };
export type Unjudged = { rule: string; layers: number; of: number; captured: number; needed: number; span_steps: number; sentence: string };
export type Usage = { max_bytes: number; nbytes: number; parts: Record<string, PartUsage>; dropped: Record<string, number>; merged: Record<string, number> };
export type Verdict = { outcome: "different" | "no difference" | "unknown"; message: string; steps_compared: number; steps_captured: [number, number]; steps_not_comparable: number };
export type View = { name: string; query: string };
export type Views = { views: Array<View> };
export type Message = ErrorMessage | EventsMessage | IncidentsMessage | RowsMessage | RunsMessage | ScalarsMessage | StateMessage;
/** The answer to GET of a path below api/v1. */
export type AnswerOf<P extends string> =
  P extends `runs/${string}/modules` ? Modules :
  P extends `snapshots/${string}/casts` ? BlockCasts :
  P extends `snapshots/${string}/names` ? SnapshotNames :
  P extends `snapshots/${string}/statistics` ? Statistics :
  P extends `snapshots/${string}/tiles` ? Tiles :
  P extends `compare/heatmap` ? ComparisonHeatmap :
  P extends `ranks/map` ? RankMap :
  P extends `ranks/spread` ? LayerSpreads :
  P extends `incidents/${string}` ? Incident :
  P extends `media/${string}` ? unknown :
  P extends `runs/${string}` ? Run :
  P extends `snapshots/${string}` ? Snapshot :
  P extends `annotations` ? Annotations :
  P extends `attention-rollout` ? Rollout :
  P extends `board` ? Board :
  P extends `capsules` ? Capsules :
  P extends `channels` ? Channels | ChannelTaps :
  P extends `cka` ? Cka :
  P extends `commands` ? Outcomes :
  P extends `compare` ? Comparison :
  P extends `coverage` ? CoverageList :
  P extends `differences` ? Differences :
  P extends `events` ? Events :
  P extends `figure` ? Figure :
  P extends `findings` ? Findings :
  P extends `flow` ? Flow :
  P extends `heatmap` ? Heatmap :
  P extends `histograms` ? Histograms | HistogramsList :
  P extends `hooks` ? Hooks :
  P extends `incidents` ? Incidents :
  P extends `latest` ? Latest :
  P extends `live` ? unknown :
  P extends `media` ? MediaList :
  P extends `model` ? Model :
  P extends `mutes` ? Mutes :
  P extends `nearest` ? Nearest :
  P extends `notifications` ? Notifications :
  P extends `overlay` ? Overlay :
  P extends `overview` ? Overview :
  P extends `precision` ? Precision :
  P extends `ranks` ? Ranks :
  P extends `removed-runs` ? RemovedRuns :
  P extends `report` ? unknown :
  P extends `resume` ? ResumeCheck :
  P extends `rules` ? RunRules :
  P extends `runs` ? Runs :
  P extends `samples` ? Samples :
  P extends `scalars` ? Scalars :
  P extends `series` ? SeriesList :
  P extends `settings` ? Settings :
  P extends `snapshots` ? Snapshots :
  P extends `taps` ? Taps :
  P extends `timeline` ? Timeline :
  P extends `views` ? Views :
  unknown;
