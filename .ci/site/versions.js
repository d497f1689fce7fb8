// Offers the other versions of a page, if this site is in a folder with a list of them. It needs no server.
const root = new URL(document.documentElement.dataset.content_root, location.href);
const version = DOCUMENTATION_OPTIONS.VERSION;

/** Add the list of versions below the title in the sidebar. Leads to the same page, or to the start of a version without it. */
function offer(versions) {
  const page = location.href.slice(root.href.length).replace(/[?#].*$/, "") || "index.html";
  const select = document.createElement("select");
  select.setAttribute("aria-label", "Version of the documentation");
  select.style.margin = "0 1rem 0.5rem";
  for (const name of Object.keys(versions)) {
    select.append(new Option(name, name, name === version, name === version));
  }
  select.addEventListener("change", () => {
    const known = versions[select.value].includes(page);
    location.href = new URL(`../${select.value}/${known ? page : "index.html"}`, root);
  });
  document.querySelector(".sidebar-brand")?.after(select);
}

if (root.pathname.endsWith(`/${version}/`)) {
  const list = document.createElement("script");
  list.src = new URL("../versions.js", root);
  list.addEventListener("load", () => offer(window.hookcoreVersions));
  document.head.append(list);
}
