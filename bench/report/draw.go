package report

import (
	"bytes"
	"image/color"
	"math"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	stdfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A chart's size. A README on GitHub is about 640 pt wide.
const (
	chartWidth  = 640 * vg.Length(1)
	chartHeight = 340 * vg.Length(1)
	chartMargin = 12 * vg.Length(1)
	pngDPI      = 144
	aslant      = math.Pi / 6 // of labels that have no room side by side
)

var (
	ink   = color.Gray{Y: 0x22}
	faint = color.Gray{Y: 0x66}
	pale  = color.Gray{Y: 0xdd}

	// palette is Okabe and Ito's, which people with any colour vision can tell apart, without yellow, which is hard to
	// see on white. The first are those of known subjects, so that each looks the same in all charts.
	palette = [...]color.RGBA{
		{0x99, 0x99, 0x99, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
		{0xcc, 0x79, 0xa7, 0xff}, {0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x22, 0x22, 0x22, 0xff},
	}
	glyphs = [...]draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}}
)

// look is a series' place in the palette: a known subject has its own, others take those that are left in turn.
func look(names []string, i int) int {
	if at := slices.Index(known, names[i]); at >= 0 {
		return at
	}
	first := len(known)
	if !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(known, name) }) {
		first = 1 // no subjects here: grey is for what is measured against
	}
	for _, name := range names[:i] {
		if !slices.Contains(known, name) {
			first++
		}
	}
	return first % len(palette)
}

// write draws the chart into root as name.svg and name.png.
func (d *chart) write(root *os.Root, name string) error {
	p, legend, err := d.plot()
	if err != nil {
		return err
	}
	if err := root.MkdirAll(chartsDir, 0o755); err != nil {
		return err
	}
	svg := vgsvg.New(chartWidth, chartHeight)
	d.paint(p, legend, draw.New(svg))
	var out bytes.Buffer
	if _, err := svg.WriteTo(&out); err != nil {
		return err
	}
	if err := root.WriteFile(name+".svg", portableFonts(out.Bytes()), 0o644); err != nil {
		return err
	}
	img := vgimg.NewWith(vgimg.UseWH(chartWidth, chartHeight), vgimg.UseDPI(pngDPI))
	d.paint(p, legend, draw.New(img))
	out.Reset()
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(&out); err != nil {
		return err
	}
	return root.WriteFile(name+".png", out.Bytes(), 0o644)
}

// portableFonts names fonts of the same measures for machines without Liberation.
func portableFonts(svg []byte) []byte {
	return bytes.ReplaceAll(svg, []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
}

// paint draws the title at the top, the plot below it, and the legend at its right, where it hides nothing.
func (d *chart) paint(p *plot.Plot, legend *plot.Legend, c draw.Canvas) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	c = draw.Crop(c, chartMargin, -chartMargin, chartMargin, -chartMargin)
	top := c.Max.Y - 14
	c.FillText(textStyle(15, ink, stdfont.WeightBold), vg.Point{X: c.Min.X, Y: top}, d.title)
	if d.subtitle != "" {
		top -= 18
		c.FillText(textStyle(12, faint, stdfont.WeightNormal), vg.Point{X: c.Min.X, Y: top}, d.subtitle)
	}
	c = draw.Crop(c, d.slant(p), 0, 0, top-c.Max.Y-chartMargin)
	if len(d.series) == 1 && d.series[0].name == "" {
		p.Draw(c)
		return
	}
	room := legend.Rectangle(c).Size().X
	p.Draw(draw.Crop(c, 0, -room-chartMargin, 0, 0))
	legend.Draw(draw.Crop(c, c.Size().X-room, 0, 0, 0))
}

// slant is the room that the first label needs at the left of the y axis when labels are aslant.
func (d *chart) slant(p *plot.Plot) vg.Length {
	style := p.X.Tick.Label
	if style.Rotation == 0 {
		return 0
	}
	style.Rotation = 0
	const axis = 55 // that the y axis takes anyway
	return max(0, style.Width(plain(d.ticks[0].label, 20))*vg.Length(math.Cos(aslant))-axis)
}

// plot lays out everything but the title and the legend, which it returns apart.
func (d *chart) plot() (*plot.Plot, *plot.Legend, error) {
	p, legend := plot.New(), plot.NewLegend()
	d.style(p, &legend)
	d.scale(p)
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color, grid.Horizontal.Dashes = pale, nil
	p.Add(grid)
	for i := range d.series {
		add := d.addLine
		if d.bars {
			add = d.addBars
		}
		if err := add(p, &legend, i); err != nil {
			return nil, nil, err
		}
	}
	return p, &legend, nil
}

// textStyle is the charts' one typeface.
func textStyle(size font.Length, c color.Color, weight stdfont.Weight) text.Style {
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Weight: weight}
	return text.Style{Font: font.From(sans, size), Color: c, Handler: plot.DefaultTextHandler}
}

// style sets the axes' texts, fonts and colours.
func (d *chart) style(p *plot.Plot, legend *plot.Legend) {
	p.X.Label.Text, p.Y.Label.Text = d.x, d.y
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font = textStyle(13, ink, stdfont.WeightNormal).Font
		axis.Tick.Label.Font = textStyle(12, ink, stdfont.WeightNormal).Font
		axis.Label.TextStyle.Color, axis.Tick.Label.Color = ink, ink
		axis.Label.Padding, axis.Padding = 6, 0
		axis.Color, axis.Tick.Color = ink, ink
		axis.Tick.Length = 5
	}
	legend.Top, legend.Left, legend.Padding = true, true, 4
	legend.TextStyle = textStyle(12, ink, stdfont.WeightNormal)
}

// scale sets both axes: from zero when they are linear, from a round number below all values when they are not.
func (d *chart) scale(p *plot.Plot) {
	low, high := d.extent()
	if d.logY {
		p.Y.Min, p.Y.Max = roundBelow(low), roundAbove(high)
		if p.Y.Min == p.Y.Max {
			p.Y.Max *= 10
		}
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	} else {
		p.Y.Min, p.Y.Max = math.Min(0, low*1.1), math.Max(high*1.1, 0)
		if p.Y.Max-p.Y.Min < 1/mostMagnitude {
			p.Y.Max = 1
		}
		p.Y.Tick.Marker = plot.TickerFunc(linearTicks)
	}
	first, last := d.ticks[0].at, d.ticks[len(d.ticks)-1].at
	switch {
	case d.logX:
		p.X.Scale = plot.LogScale{}
		margin := math.Max(math.Pow(last/first, 0.04), 1.1)
		p.X.Min, p.X.Max = first/margin, last*margin
	case d.bars:
		p.X.Min, p.X.Max = first-0.5, last+0.5
		p.X.Tick.Color = color.White // only room between a bar and its name
	default:
		margin := math.Max((last-first)*0.04, 0.1)
		p.X.Min, p.X.Max = first-margin, last+margin
	}
	d.nameTicks(&p.X)
}

// extent is the range of all values with their whiskers.
func (d *chart) extent() (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, s := range d.series {
		for _, p := range s.points {
			low, high = math.Min(low, p.Min), math.Max(high, p.Max)
		}
	}
	return low, high
}

// perLetter is about what a letter of a tick's label takes of the x axis.
const perLetter = 0.0125

// nameTicks puts the ticks' labels on the x axis. Names are broken into lines to fit side by side, or stand aslant when
// that does not do. Of numbers, one too close to its left neighbour goes without.
func (d *chart) nameTicks(axis *plot.Axis) {
	ticks := make([]plot.Tick, len(d.ticks))
	end := math.Inf(-1)
	for i, t := range d.ticks {
		ticks[i] = plot.Tick{Value: t.at, Label: t.label}
		half := perLetter * float64(utf8.RuneCountInString(t.label)) / 2
		if at := axis.Norm(t.at); at-half >= end {
			end = at + half + perLetter
		} else if !d.even {
			ticks[i].Label = ""
		}
	}
	axis.Tick.Marker = plot.ConstantTicks(ticks)
	if !d.even {
		return
	}
	fit := true
	broken := slices.Clone(ticks)
	for i, t := range ticks {
		var ok bool
		broken[i].Label, ok = breakLines(t.Label, int(1/perLetter)/len(ticks)-1)
		fit = fit && ok
	}
	if fit {
		axis.Tick.Marker = plot.ConstantTicks(broken)
		return
	}
	for i, t := range ticks {
		ticks[i].Label = plain(t.Label, 20)
	}
	axis.Tick.Label.Rotation = aslant
	axis.Tick.Label.XAlign, axis.Tick.Label.YAlign = text.XRight, text.YCenter
}

// breakLines breaks a name at spaces into lines of at most width letters. It reports whether three lines are enough.
func breakLines(name string, width int) (string, bool) {
	var lines []string
	for word := range strings.FieldsSeq(name) {
		if last := len(lines) - 1; last >= 0 && utf8.RuneCountInString(lines[last]+" "+word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	fit := len(lines) <= 3
	for _, line := range lines {
		fit = fit && utf8.RuneCountInString(line) <= width
	}
	return strings.Join(lines, "\n"), fit
}

// addLine adds a series as a line with its points and whiskers.
func (d *chart) addLine(p *plot.Plot, legend *plot.Legend, i int) error {
	line, points, err := plotter.NewLinePoints(whiskers(d.series[i].points))
	if err != nil {
		return err
	}
	at := look(d.names(), i)
	line.Color, line.Width = palette[at], 2
	points.Color, points.Radius, points.Shape = palette[at], 4, glyphs[at%len(glyphs)]
	p.Add(line, points)
	legend.Add(d.series[i].name, line, points)
	return addWhiskers(p, d.series[i].points, palette[at], 6)
}

// addBars adds a series as bars beside those of the other series.
func (d *chart) addBars(p *plot.Plot, legend *plot.Legend, i int) error {
	width := 0.8 / float64(len(d.series))
	points := make([]chartPoint, len(d.series[i].points))
	for j, point := range d.series[i].points {
		point.x += (float64(i) - float64(len(d.series)-1)/2) * width
		points[j] = point
		base := 0.0
		if d.logY {
			base = p.Y.Min
		}
		left, right := point.x-width*0.46, point.x+width*0.46
		bar, err := plotter.NewPolygon(plotter.XYs{{X: left, Y: base}, {X: left, Y: point.Median}, {X: right, Y: point.Median}, {X: right, Y: base}})
		if err != nil {
			return err
		}
		bar.Color, bar.LineStyle.Width = d.barColor(i, point.x), 0
		p.Add(bar)
		if j == 0 {
			legend.Add(d.series[i].name, bar)
		}
	}
	if err := addWhiskers(p, points, ink, min(6, 250/vg.Length(len(d.series)*len(d.ticks)))); err != nil {
		return err
	}
	return d.addValues(p, points)
}

// barColor is a series' colour. Bars of no series that each are a subject have their subject's.
func (d *chart) barColor(i int, x float64) color.Color {
	if d.x != subjectField || len(d.series) > 1 {
		return palette[look(d.names(), i)]
	}
	var subjects []string
	for _, t := range d.ticks {
		subjects = append(subjects, t.label)
	}
	return palette[look(subjects, int(x))]
}

// names are those of the series.
func (d *chart) names() []string {
	var names []string
	for _, s := range d.series {
		names = append(names, s.name)
	}
	return names
}

// addValues writes each bar's median above it, if there is room for all.
func (d *chart) addValues(p *plot.Plot, points []chartPoint) error {
	if len(d.series)*len(d.ticks) > 16 {
		return nil
	}
	labels := plotter.XYLabels{}
	for _, point := range points {
		labels.XYs = append(labels.XYs, plotter.XY{X: point.x, Y: math.Max(point.Max, 0)})
		labels.Labels = append(labels.Labels, number(point.Median, d.digits))
	}
	values, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range values.TextStyle {
		values.TextStyle[i] = textStyle(11, ink, stdfont.WeightNormal)
		values.TextStyle[i].XAlign = text.XCenter
	}
	values.Offset.Y = 3
	p.Add(values)
	return nil
}

// whiskers are points as the plotters take them.
type whiskers []chartPoint

func (w whiskers) Len() int                { return len(w) }
func (w whiskers) XY(i int) (x, y float64) { return w[i].x, w[i].Median }
func (w whiskers) YError(i int) (low, up float64) {
	return w[i].Median - w[i].Min, w[i].Max - w[i].Median
}

// addWhiskers adds the spread of each point that has one.
func addWhiskers(p *plot.Plot, points []chartPoint, c color.Color, width vg.Length) error {
	points = slices.DeleteFunc(slices.Clone(points), func(p chartPoint) bool { return p.Min == p.Max })
	if len(points) == 0 {
		return nil
	}
	bars, err := plotter.NewYErrorBars(whiskers(points))
	if err != nil {
		return err
	}
	bars.LineStyle.Color, bars.LineStyle.Width, bars.CapWidth = c, 1, width
	p.Add(bars)
	return nil
}

// linearTicks are some six round numbers.
func linearTicks(low, high float64) []plot.Tick {
	step := roundAbove((high - low) / 7)
	var ticks []plot.Tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: limit(rounded(i * step))})
	}
	return ticks
}

// logTicks are powers of ten, and within three decades their double and fivefold too.
func logTicks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	few := high/low <= 1001
	for power := math.Floor(math.Log10(low)); power <= math.Log10(high); power++ {
		for _, digit := range []float64{1, 2, 5} {
			v := rounded(digit * math.Pow(10, power))
			if v < low*0.999 || v > high*1.001 {
				continue
			}
			t := plot.Tick{Value: v}
			if digit == 1 || few {
				t.Label = limit(v)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// roundAbove and roundBelow are the nearest 1, 2 or 5 times a power of ten that is not less, or not more, than v > 0.
func roundAbove(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= v*0.999999 {
			return rounded(digit * power)
		}
	}
	return rounded(10 * power)
}

func roundBelow(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, digit := range []float64{5, 2, 1} {
		if digit*power <= v*1.000001 {
			return rounded(digit * power)
		}
	}
	return rounded(power)
}

// rounded is v without what floating point adds to a round number: twelve digits.
func rounded(v float64) float64 {
	if v == 0 {
		return 0
	}
	scale := math.Pow(10, 11-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}
