// SHAP and attention as two heat maps with the same rows (followers) and columns (leaders).
// A cell without a value is NaN; rows or columns of firms or sectors that were not measured are left out.
const around = 9;  // leaders, followers, and most attended leaders of a firm in its neighbourhood

function colourOf(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function channels(hex) {
  return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
}

// The matrix as an image with one pixel per cell, transparent without a value. Shares of the limit are drawn as
// square roots, so that small cells are not lost beside one large one.
function imageOf(matrix) {
  const width = matrix.columns.length;
  const image = new ImageData(width, matrix.rows.length);
  const ground = channels(colourOf("--ground"));
  const up = channels(colourOf(matrix.up));
  const down = channels(colourOf(matrix.down));
  for (let cell = 0; cell < width * matrix.rows.length; cell += 1) {
    const value = matrix.value(Math.floor(cell / width), cell % width);
    if (Number.isNaN(value)) { continue; }
    const full = value < 0 ? down : up;
    const share = Math.sqrt(Math.min(1, Math.abs(value) / matrix.limit));
    for (let at = 0; at < 3; at += 1) { image.data[4 * cell + at] = ground[at] + (full[at] - ground[at]) * share; }
    image.data[4 * cell + 3] = 255;
  }
  const canvas = element("canvas", { width: width, height: matrix.rows.length });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function heatMap(matrix, title, caption, tellCell) {
  const height = matrix.rows.length;
  const width = matrix.columns.length;
  const canvas = element("canvas", { role: "img", tabindex: 0, "aria-label": title + ". Use the arrow keys to read cells." });
  const readout = element("p", { class: "readout", "aria-live": "polite" });
  const idle = "Point at a cell, or use the arrow keys.";
  readout.textContent = idle;
  let cell = null;
  let margin = 0;
  let pixels = 0;
  const draw = function () {
    const room = canvas.parentElement.clientWidth - 2;
    if (room <= 0) { return; }
    const named = width <= 32;
    const longest = Math.max.apply(null, matrix.rows.concat(matrix.columns).map(name => name.length));
    margin = named ? Math.min(room < 420 ? 62 : 130, 8 + 6.6 * Math.min(longest, 18)) : 4;
    pixels = Math.min(named ? 34 : 12, (room - margin) / width);
    const ratio = window.devicePixelRatio || 1;
    [["width", width], ["height", height]].forEach(function (side) {
      const total = Math.ceil(margin + pixels * side[1]) + 1;
      canvas[side[0]] = total * ratio;
      canvas.style[side[0]] = total + "px";
    });
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const gap = pixels > 6 ? 1 : 0;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(imageOf(matrix), margin, margin, width * pixels, height * pixels);
    if (gap) {  // thin lines between the cells, and a dot in a cell without a value
      for (let row = 1; row <= height; row += 1) { pen.clearRect(margin, margin + row * pixels - gap, width * pixels, gap); }
      for (let column = 1; column <= width; column += 1) { pen.clearRect(margin + column * pixels - gap, margin, gap, height * pixels); }
      pen.fillStyle = colourOf("--line");
      for (let row = 0; row < height; row += 1) {
        for (let column = 0; column < width; column += 1) {
          if (Number.isNaN(matrix.value(row, column)) && !matrix.own(row, column)) {
            pen.fillRect(margin + (column + 0.5) * pixels - 1, margin + (row + 0.5) * pixels - 1, 2, 2);
          }
        }
      }
    }
    if (named) {
      pen.fillStyle = colourOf("--ink");
      pen.font = Math.min(12, Math.max(8, pixels - 3)) + "px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const short = words => words.length > 18 ? words.slice(0, 17) + "\u2026" : words;
      pen.textAlign = "right";
      matrix.rows.forEach(function (words, at) {
        pen.fillText(short(words), margin - 4, margin + (at + 0.5) * pixels, margin - 4);
      });
      pen.textAlign = "left";
      matrix.columns.forEach(function (words, at) {
        pen.save();
        pen.translate(margin + (at + 0.5) * pixels, margin - 4);
        pen.rotate(-Math.PI / 2);
        pen.fillText(short(words), 0, 0, margin - 4);
        pen.restore();
      });
    }
    if (cell) {
      pen.strokeStyle = colourOf("--ink");
      pen.lineWidth = 1.5;
      pen.strokeRect(margin + cell[1] * pixels, margin + cell[0] * pixels, Math.max(2, pixels - gap), Math.max(2, pixels - gap));
    }
  };
  const tell = function (row, column, quiet) {
    cell = row >= 0 && column >= 0 && row < height && column < width ? [row, column] : null;
    readout.textContent = cell ? matrix.tell(row, column) : idle;
    draw();
    if (!quiet) { tellCell(row, column); }
  };
  canvas.addEventListener("pointermove", function (event) {
    const box = canvas.getBoundingClientRect();
    tell(Math.floor((event.clientY - box.top - margin) / pixels), Math.floor((event.clientX - box.left - margin) / pixels));
  });
  canvas.addEventListener("keydown", function (event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!steps[event.key]) { return; }
    event.preventDefault();
    const old = cell || [0, -1];
    const within = (at, count) => Math.max(0, Math.min(count - 1, at));
    tell(within(old[0] + steps[event.key][0], height), within(old[1] + steps[event.key][1], width));
  });
  const figure = element("figure", { class: "matrix" }, element("h4", {}, title),
    element("div", {}, canvas), readout, scaleOf(matrix), element("figcaption", {}, caption));
  return { figure: figure, draw: draw, tell: tell };
}

function scaleOf(matrix) {
  const ends = matrix.signed ? [["--lower", "lowers by " + matrix.words(matrix.limit)]] : [];
  ends.push(["--ground", "0"], [matrix.up, (matrix.signed ? "raises by " : "") + matrix.words(matrix.limit)]);
  return element("p", { class: "scale" }, ends.map(function (end) {
    return element("span", {}, element("i", { style: "background:var(" + end[0] + ")" }), end[1]);
  }), element("span", {}, "colour: square root"));
}

// Two maps beside each other; a cell that is read in one is marked in the other.
function pairOfMaps(shared, one, two) {
  let maps = null;
  const both = function (other) {
    return function (row, column) { maps[other].tell(row, column, true); };
  };
  maps = [heatMap(Object.assign({}, shared, one), one.title, one.caption, both(1)),
    heatMap(Object.assign({}, shared, two), two.title, two.caption, both(0))];
  return maps;
}

function largestOf(values) {
  return values.reduce((limit, value) => Math.max(limit, Math.abs(value) || 0), 0) || 1;
}

// The firms around a firm on a date: its largest leaders, its most attended leaders, its largest followers.
function neighbourhood(model, firm, leaders, followers) {
  const attended = leaders.slice().sort((a, b) => b.attention - a.attention);
  const chosen = new Set([firm]);
  [leaders, followers, attended.slice(0, 5)].forEach(function (rows) {
    rows.slice(0, around).forEach(function (one) { chosen.add(one.peer); });
  });
  return Array.from(chosen);
}

function neighbourMaps(model, state, leaders, followers) {
  const columns = neighbourhood(model, state.firm, leaders, followers);
  const rows = columns.filter(firm => isFollower(model, firm));
  const columnOf = new Map(columns.map((firm, at) => [firm, at]));
  const size = columns.length;
  const empty = () => new Float32Array(rows.length * size).fill(NaN);
  const value = empty();
  const error = empty();
  const attention = empty();
  const dated = model.dated;
  rows.forEach(function (firm, at) {
    datedRows(model, firm, state.date, "in").forEach(function (row) {
      const leader = columnOf.get(dated.leader[row]);
      if (leader === undefined) { return; }
      value[at * size + leader] = dated.value[row];
      error[at * size + leader] = dated.error[row];
      attention[at * size + leader] = dated.attention[row];
    });
  });
  if (!rows.length || size < 2) { return []; }
  const nameOf = firm => model.firms[firm];
  const own = (row, column) => rows[row] === columns[column];
  const shap = (row, column) => value[row * size + column];
  const weight = (row, column) => attention[row * size + column];
  const tell = function (row, column) {
    if (own(row, column)) { return nameOf(rows[row]) + ": a firm is not its own peer."; }
    const pair = nameOf(columns[column]) + " \u2192 " + nameOf(rows[row]) + ": ";
    const cell = row * size + column;
    if (!Number.isNaN(value[cell])) {
      return pair + withError(value[cell], error[cell], true) + "; attention " + percent(attention[cell]);
    }
    return pair + "not among the " + model.strongest + " largest of " + nameOf(rows[row]) + " by either measure";
  };
  const date = model.dates[state.date];
  return pairOfMaps({ rows: rows.map(nameOf), columns: columns.map(nameOf), own: own },
    {
      title: "Shapley values, " + date, value: shap, limit: largestOf(value), tell: tell, signed: true,
      up: "--raise", down: "--lower", words: withUnit,
      caption: "Effect of the leader (column) on the forecast of the follower (row). Not shown: whether the effect "
        + "was right, paths through other firms, and pairs with a dot, which were not stored.",
    },
    {
      title: "Attention, " + date, value: weight, limit: largestOf(attention), tell: tell, signed: false,
      up: "--attend", down: "--attend", words: percent,
      caption: "How much the follower (row) reads of the leader (column), mean over layers and heads. Not shown: "
        + "what the reading does to the forecast. A weight has no sign and no unit of return.",
    });
}

function groupMaps(model) {
  const size = model.groups.length;
  const known = model.groups.map((name, group) => group);
  const rows = known.filter(function (row) { return known.some(function (column) { return !Number.isNaN(model.blocks.weight[row * size + column]); }); });
  const columns = known.filter(function (column) { return known.some(function (row) { return !Number.isNaN(model.blocks.weight[row * size + column]); }); });
  const shap = (row, column) => model.blocks.weight[rows[row] * size + columns[column]];
  const weight = (row, column) => model.blocks.attention[rows[row] * size + columns[column]];
  if (!rows.length) { return []; }
  const nameOf = group => model.groups[group];
  const tell = function (row, column) {
    const pair = nameOf(columns[column]) + " \u2192 " + nameOf(rows[row]) + ": ";
    return Number.isNaN(shap(row, column)) ? pair + "no pair was measured"
      : pair + withUnit(shap(row, column)) + "; attention " + number(100 * weight(row, column), 3) + "%";
  };
  return pairOfMaps({ rows: rows.map(nameOf), columns: columns.map(nameOf), own: () => false },
    {
      title: "Weight by sector, all dates", value: shap, limit: largestOf(model.blocks.weight), tell: tell, signed: false,
      up: "--raise", down: "--raise", words: withUnit,
      caption: "Root mean square weight of the measured pairs between leaders' sectors (columns) and followers' "
        + "sectors (rows). Not shown: signs, dates, and which firms of a sector matter. A sector with few firms is noisy.",
    },
    {
      title: "Attention by sector, all dates", value: weight, limit: largestOf(model.blocks.attention), tell: tell, signed: false,
      up: "--attend", down: "--attend", words: value => number(100 * value, 3) + "%",
      caption: "Mean attention of the same pairs. Not shown: any effect on a forecast; a sector that is read much "
        + "may move nothing.",
    });
}
