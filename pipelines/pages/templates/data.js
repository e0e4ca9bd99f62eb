// The data of a page: JSON, compressed by gzip and written as base64. Nothing is requested.
async function unpack() {
  if (!window.DecompressionStream) {
    document.querySelector("header").append("This browser cannot unpack the data of this page; open it in one of May 2023 or later.");
  }
  const text = atob(document.getElementById("data").textContent);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) { bytes[at] = text.charCodeAt(at); }
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}
