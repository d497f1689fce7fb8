/** The System page: the server renders the newest values, also when something has changed; the lines are drawn here. */
import { byId } from "../dom.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";
import { SystemCharts } from "../system/charts.js";

const page = open();
const parts = new Parts(page, "system");
const charts = new SystemCharts(page);
const newest = byId("newest");
const look = () => charts.show(JSON.parse(newest.dataset.plans ?? "[]"));

parts.follow(undefined, { held: true });
page.events.on("run", () => page.follow.paused || parts.soon(["newest", "cost"]));
newest.addEventListener("renewed", look);
look();
