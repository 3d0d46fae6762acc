/* A figure in a live notebook: what the kernel sends is drawn into the figure that is there. See live.py. */
const NAME = "shardlabPlotly"; // one plotly.js for all figures of a page

function plotly() { // a promise, kept by its resolver
  if (!(NAME in window)) {
    let resolve;
    const promise = new Promise((done) => (resolve = done));
    window[NAME] = { promise, resolve };
  }
  return window[NAME];
}

function initialize({ model }) { // also while the kernel is busy: the script comes along with its first figure
  const script = model.get("script");
  if (!script || plotly().loaded) return;
  plotly().loaded = true;
  const module = { exports: {} }; // else the script would look for a loader of the page, and find the wrong one
  new Function("module", new TextDecoder().decode(script))(module);
  plotly().resolve(module.exports);
}

async function render({ model, el }) {
  const Plotly = await plotly().promise;
  let frame;
  const draw = () => {
    frame = undefined;
    const { data, layout } = structuredClone(model.get("figure")); // plotly writes into what it is given
    return Plotly.react(el, data, layout, { displaylogo: false, responsive: true });
  };
  const follow = () => (frame ??= requestAnimationFrame(draw)); // of several changes in a frame, the last is drawn
  model.on("change:figure", follow);
  await draw();
  return () => {
    model.off("change:figure", follow);
    Plotly.purge(el);
  };
}

export default { initialize, render };
