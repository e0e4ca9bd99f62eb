// A browser starts no web worker for a page that was opened from disk. The search of this site needs one, so on file://
// pages window.Worker runs the worker's script in a hidden frame instead. It has the two things that the search uses:
// postMessage and the "message" event.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc =
        "<script>" +
        "var postMessage = (data) => parent.postMessage(data, '*');" +
        "var importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done, failed) => {" +
        "const script = document.createElement('script');" +
        "script.src = url; script.async = false; script.onload = done; script.onerror = failed;" +
        "document.body.append(script);" +
        "})));" +
        "<" + "/script><body><script src=\"" + encodeURI(url) + "\"><" + "/script>";
      this.frame = frame;
      this.loaded = new Promise((done) => frame.addEventListener("load", done, { once: true }));
      window.addEventListener("message", (event) => {
        if (event.source === frame.contentWindow) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      });
      const attach = () => document.body.append(frame);
      if (document.body) attach();
      else document.addEventListener("DOMContentLoaded", attach, { once: true });
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
