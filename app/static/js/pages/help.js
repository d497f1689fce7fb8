// @ts-check
import { open } from "../page.js";

open();
