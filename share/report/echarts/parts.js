// The parts of Apache ECharts that the pages draw with; build.sh makes echarts.js of them.
import { use } from "echarts/core";
import { BarChart, CustomChart, HeatmapChart, LineChart, ScatterChart } from "echarts/charts";
import {
    AriaComponent,
    DataZoomComponent,
    GridComponent,
    LegendComponent,
    MarkLineComponent,
    TooltipComponent,
    VisualMapComponent,
} from "echarts/components";
import { SVGRenderer } from "echarts/renderers";

use([
    BarChart,
    CustomChart,
    HeatmapChart,
    LineChart,
    ScatterChart,
    AriaComponent,
    DataZoomComponent,
    GridComponent,
    LegendComponent,
    MarkLineComponent,
    TooltipComponent,
    VisualMapComponent,
    SVGRenderer,
]);

export { init } from "echarts/core";
