// A page that was opened as a file may not fetch other pages: the search shows results without their first lines.
if (location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
